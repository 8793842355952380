#include "planner/stacks/deepspeed/layout.h"

#include <algorithm>

#include "planner/stacks/deepspeed/nvme.h"

namespace plimsoll::planner::deepspeed {

FlatLayout::FlatLayout(const ModelParts& parts, const Engine& engine)
    : options_(engine.options),
      stage3_(engine.stage == 3),
      ranks_(engine.ranks),
      model_(engine.model),
      adapters_(engine.adapters),
      packed_(engine.packed) {
  blocks_.reserve(parts.runs.size() + 2);
  // A table that is tied to the head is registered as the embedding's.
  const std::int64_t table =
      parts.decoder.tied_head ? checked_multiply(parts.decoder.vocab, parts.decoder.table_width())
                              : 0;
  std::vector<Parameter> front, tail;
  for (const Parameter& p : parts.tail) (p.elements == table ? front : tail).push_back(p);
  front.insert(front.end(), parts.embedding.begin(), parts.embedding.end());
  add(front, 1);
  for (const LayerRun& run : parts.runs) {
    std::vector<Parameter> once;  // of the pattern
    for (const LayerPart& layer : run.pattern)
      once.insert(once.end(), layer.parameters.begin(), layer.parameters.end());
    add(once, run.repeats());
    blocks_.back().layers = run.period();
  }
  add(tail, 1);
  aligned_ = ceil_divide(total_, 2 * ranks_) * 2 * ranks_;
  check(total_ > 0, ErrorKind::internal, "nothing is trained: model_parts refuses that");
  if (engine.options.round_robin_gradients && !stage3_ && engine.stage > 0) deal();
}

void FlatLayout::deal() {
  std::vector<std::int64_t> elements;
  for (const Block& block : blocks_)
    for (std::int64_t i = 0; i < block.count; ++i)
      elements.insert(elements.end(), block.parameters.begin(), block.parameters.end());
  dealt_.resize(elements.size());
  const auto ranks = static_cast<std::size_t>(ranks_);
  std::int64_t at = 0;
  for (std::size_t first = 0; first < std::min(ranks, elements.size()); ++first)
    for (std::size_t i = first; i < elements.size(); i += ranks) {
      dealt_[i] = at;
      at += elements[i];
    }
}

void FlatLayout::add(const std::vector<Parameter>& parameters, std::int64_t count) {
  Block block{.begin = total_, .first = count_, .count = count};
  for (const Parameter& p : parameters) {
    if (stage3_) add_shard(p, count, block);
    if (!p.trainable) continue;
    block.parameters.push_back(p.elements);
    block.elements += p.elements;
    largest_ = std::max(largest_, p.elements);
  }
  // stage3.py, _create_fp16_sub_groups: a group ends with the parameter that fills it.
  for (std::int64_t i = 0; stage3_ && i < count; ++i)
    for (const std::int64_t elements : block.parameters) {
      sub_group_ += ceil_divide(elements, ranks_);
      sub_group_uncut_ += in_file(elements, model_);
      if (sub_group_ > shards_.sub_group) {
        shards_.sub_group = sub_group_;
        shards_.sub_group_uncut = sub_group_uncut_;
      }
      if (shards_.sub_groups.empty() || starts_sub_group_) shards_.sub_groups.push_back(0);
      shards_.sub_groups.back() = sub_group_;
      starts_sub_group_ = sub_group_ >= options_.sub_group_size;
      if (!starts_sub_group_) continue;
      sub_group_ = 0;
      sub_group_uncut_ = Bytes(0);
    }
  total_ += checked_multiply(block.elements, count);
  count_ += static_cast<std::int64_t>(block.parameters.size()) * count;
  blocks_.push_back(std::move(block));
}

// partition_parameters.py, _partition_numel; parameter_offload.py, mark_persistent_parameters.
// A run's layers are counted at once: where the whole model's threshold falls inside, all or none.
void FlatLayout::add_shard(const Parameter& p, std::int64_t count, Block& block) {
  const std::int64_t part = ceil_divide(p.elements, ranks_);
  shards_.all += checked_multiply(part, count);
  shards_.parts.push_back({part, count, p.adapter, stored(p)});
  shards_.stored += storage(Count(part * count), stored(p));
  if (p.trainable) {
    shards_.trained += part * count;
    shards_.largest = std::max(shards_.largest, part);
  }
  const bool small = p.elements <= options_.param_persistence_threshold &&
                     persistent_ + p.elements * count <= options_.model_persistence_threshold;
  block.all.push_back(p);
  block.persistent.push_back(small);
  if (small) {
    shards_.stored_persistent += storage(Count(p.elements * count), stored(p));
    persistent_ += p.elements * count;
  } else {
    block.gathered.push_back(p.elements);
  }
}

std::int64_t FlatLayout::Block::take_gathered(std::int64_t of) {
  const auto found = std::ranges::find(gathered, of);
  if (found == gathered.end()) return 0;
  gathered.erase(found);
  return of;
}

template <typename Visit>
void FlatLayout::visit_share(std::int64_t rank, Visit visit) const {
  const std::int64_t begin = partition() * rank, end = begin + partition();
  const auto parameter = [&](std::int64_t at, std::int64_t elements, std::int64_t index) {
    at = begin_of(index, at);
    const std::int64_t inside = std::min(end, at + elements) - std::max(begin, at);
    if (inside > 0) visit(elements, inside, index);
  };
  for (const Block& block : blocks_) {
    if (block.elements == 0) continue;
    std::int64_t first = 0, last = block.count;
    if (!deals()) {
      if (block.end() <= begin || block.begin >= end) continue;
      first = std::max<std::int64_t>(0, (begin - block.begin) / block.elements);
      last = std::min(block.count, ceil_divide(end - block.begin, block.elements));
    }
    const auto each = static_cast<std::int64_t>(block.parameters.size());
    for (std::int64_t i = first; i < last; ++i) {
      std::int64_t at = block.begin + i * block.elements;
      for (std::int64_t p = 0; p < each; ++p) {
        const std::int64_t elements = block.parameters[static_cast<std::size_t>(p)];
        parameter(at, elements, block.first + i * each + p);
        at += elements;
      }
    }
  }
}

FlatLayout::Share FlatLayout::share(std::int64_t rank) const {
  Share out;
  visit_share(rank, [&](std::int64_t elements, std::int64_t inside, std::int64_t index) {
    out.whole += elements;
    out.largest = std::max(out.largest, inside);
    ++out.pieces;
    out.last = index;
  });
  if (partition() * (rank + 1) > total_) ++out.pieces;
  return out;
}

std::vector<std::int64_t> FlatLayout::parameters_of(std::int64_t rank) const {
  std::vector<std::int64_t> out;
  visit_share(rank,
              [&](std::int64_t elements, std::int64_t, std::int64_t) { out.push_back(elements); });
  return out;
}

std::vector<EqualRanks> FlatLayout::ranks(int stage) const {
  const bool partitioned = stage == 1 || stage == 2;
  return equal_ranks(ranks_, partitioned ? ranks_ : 1, [&](std::int64_t rank) {
    if (!partitioned) return std::vector<std::int64_t>();
    const Share held = share(rank);
    return std::vector<std::int64_t>{held.whole, held.largest, held.pieces, held.last};
  });
}

}  // namespace plimsoll::planner::deepspeed
