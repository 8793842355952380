// ZeRO-3: what is sharded, and how much of it is gathered when.
//
// Source: deepspeed 0.19.8, runtime/zero/stage3.py and partitioned_param_coordinator.py. Every
// module's hook fetches its own parameters and then prefetches along the recorded trace of modules,
// parameter by parameter, until stage3_prefetch_bucket_size elements are under way or
// stage3_max_live_parameters are there. Modules without parameters prefetch too, so a decoder's
// hooks ask for more than its modules use up, and the second bound is the one that holds: from the
// first layers on, and again behind the loss, where the trace goes back through the layers, about
// max_live_parameters elements are gathered. A parameter that is used again within
// stage3_max_reuse_distance elements of the trace is not released: around the loss those are the
// last max_reuse_distance / 2 elements of the model, passed once in each direction.
//
// Liger's fused loss reads the head's weight and does not call the head, whose hooks do not run.
// The first forward finds the weight missing, and registers it as an external parameter of the
// module whose forward that is (parameter_offload.py, ZeROOrderedDict): the model, or PEFT's
// LoraModel. From then on that module's hooks fetch it, before the embedding. Its next use is the
// module's backward, which comes right behind the forward, so that it stays; and what would release
// it behind the backward waits for a gradient of token ids, which have none: it goes with the
// backward's end (release_backward_leftovers).
//
// What a checkpoint runs again keeps the layer's weights until its backward, however little may be
// gathered: they are saved detached, so that a weight which is released stays (torch 2.11,
// utils/checkpoint.py, _recomputation_hook).
#include <algorithm>
#include <numeric>
#include <utility>

#include "models/decisions/layer.h"
#include "planner/stacks/deepspeed/engine_wrapper.h"
#include "planner/stacks/deepspeed/trace.h"

namespace plimsoll::planner::deepspeed {

using models::kNoGroup;
using models::Residency;

namespace {

// Parameters in the order of a trace are gathered until `limit` elements are there.
class Greedy {
 public:
  explicit Greedy(std::int64_t limit) : limit_(limit) {}

  // `count` equal layers; `reversed`: a backward, from each layer's end.
  void add(const std::vector<std::int64_t>& parameters, std::int64_t count, bool reversed) {
    std::int64_t layer = 0;
    for (const std::int64_t elements : parameters) layer += elements;
    if (layer == 0 || full()) return;
    const std::int64_t whole = std::min(count, (limit_ - sum_) / layer);
    for (std::int64_t i = 0; i < whole; ++i)
      for (std::size_t p = 0; p < parameters.size(); ++p) take(parameters, p, reversed);
    for (std::size_t p = 0; whole < count && p < parameters.size() && !full(); ++p)
      take(parameters, p, reversed);
  }
  bool full() const { return sum_ >= limit_; }
  std::int64_t sum() const { return sum_; }
  const std::vector<std::int64_t>& taken() const { return taken_; }

 private:
  void take(const std::vector<std::int64_t>& parameters, std::size_t i, bool reversed) {
    taken_.push_back(parameters[reversed ? parameters.size() - 1 - i : i]);
    sum_ += taken_.back();
  }
  std::vector<std::int64_t> taken_;
  std::int64_t limit_, sum_ = 0;
};

std::int64_t largest_layer(const std::vector<FlatLayout::Block>& blocks) {
  std::int64_t largest = 0;
  for (std::size_t i = 1; i + 1 < blocks.size(); ++i) {
    const std::vector<std::int64_t>& gathered = blocks[i].gathered;
    const auto stretch = std::accumulate(gathered.begin(), gathered.end(), std::int64_t(0));
    largest = std::max(largest, stretch / blocks[i].layers);
  }
  return largest;
}

}  // namespace

Levels EngineWrapper::gather_levels() const {
  if (engine_.stage != 3 || (engine_.ranks == 1 && !engine_.offload.params)) return {};
  std::vector<FlatLayout::Block> blocks = layout_.blocks();
  Level stays;
  std::int64_t held = 0;
  if (reads_head_weight(strategy_)) {
    FlatLayout::Block& head = d_.tied_head ? blocks.front() : blocks.back();
    held = head.take_gathered(checked_multiply(d_.vocab, d_.hidden));
    stays = {gradients(held), {gradients(held)}};
  }
  const bool tied_head = d_.tied_head && held == 0;
  const std::int64_t live = engine_.options.max_live_parameters - held;
  const std::int64_t around = std::max(live, (engine_.options.max_reuse_distance - held) / 2);
  const bool keeps = models::decisions::recomputes_layers(strategy_.recompute.kind) &&
                     !strategy_.use_reentrant.value_or(false);
  const std::int64_t again = keeps ? largest_layer(blocks) : 0;
  Greedy forward(live), loss(around), backward(std::max(live, again));
  for (const FlatLayout::Block& block : blocks) forward.add(block.gathered, block.count, false);
  // A tied head is the embedding's table, used last in the forward and first in the backward.
  if (tied_head) loss.add(blocks.front().gathered, 1, true);
  for (std::size_t i = blocks.size(); i-- > 0;) {
    if (i == 0 && tied_head) break;
    loss.add(blocks[i].gathered, blocks[i].count, true);
    if (i + 1 < blocks.size()) backward.add(blocks[i].gathered, blocks[i].count, true);
  }
  using Taken = std::vector<std::int64_t>;
  const auto level = [&](Taken::const_iterator begin, Taken::const_iterator end) {
    Level out{.bytes = gradients(std::accumulate(begin, end, std::int64_t(0)))};
    for (; begin != end; ++begin) out.parameters.push_back(gradients(*begin));
    return out;
  };
  const Taken &around_loss = loss.taken(), &after = backward.taken();
  const std::size_t head =
      std::min(around_loss.size(), (tied_head ? blocks.front() : blocks.back()).gathered.size());
  const auto layers = static_cast<std::ptrdiff_t>(around_loss.size() - head);
  const auto loss_layers = around_loss.begin() + static_cast<std::ptrdiff_t>(head);
  Levels out{.stays = std::move(stays),
             .forward = level(forward.taken().begin(), forward.taken().end()),
             .head = level(around_loss.begin(), loss_layers),
             .layers = level(loss_layers, around_loss.end()),
             .more = {}};
  out.layers_stay = static_cast<std::ptrdiff_t>(after.size()) >= layers;
  out.more = level(after.begin() + (out.layers_stay ? layers : 0), after.end());
  return out;
}

void EngineWrapper::release_gathered(TensorId& gathered, Phase phase) {
  if (gathered == kNoTensor) return;
  b_.open(kNoGroup, false, s_.times);
  b_.op("zero3.release", phase).release(gathered);
  b_.close();
  gathered = kNoTensor;
}

TensorId EngineWrapper::gather(const Level& level, Phase phase) {
  b_.open(kNoGroup, false, s_.times);
  const TensorId made = b_.tensor_in(kNoGroup, "zero3.gathered", level.bytes, Category::parameters,
                                     Residency::step, models::Stream::gather);
  if (made != kNoTensor) b_.op("zero3.gather", phase).write(made);
  if (b_.keeps_blocks()) b_.parts(made, level.parameters);
  b_.close();
  return made;
}

// Once the embedding is used up its place is taken by layers, the last of which stay until the
// backward: the head finds no place there.
void EngineWrapper::after_layers() {
  if (engine_.stage != 3) return;
  release_gathered(gathered_, Phase::forward);
  TensorId more = gather(levels_.more, Phase::forward);
  gathered_layers_ = gather(levels_.layers, Phase::forward);
  release_gathered(more, Phase::forward);
  gathered_ = gather(levels_.head, Phase::forward);
}

void EngineWrapper::before_layers_backward() {
  if (engine_.stage != 3) return;
  release_gathered(gathered_, Phase::backward);
  if (!levels_.layers_stay) release_gathered(gathered_layers_, Phase::backward);
  gathered_ = gather(levels_.more, Phase::backward);
}

// Of a base that was cut in its place (start.cpp) the frozen ones are blocks of their own, and the
// trained ones alone a block that is made.
Bytes EngineWrapper::parts_that_train(bool train) const {
  Bytes bytes;
  for (const FlatLayout::Block& block : layout_.blocks())
    for (const Parameter& p : block.all)
      if (p.trainable == train) bytes += part_of(p) * block.count;
  return bytes;
}

// A rank's parts: 16-bit parameters, masters, moments, gradients, and the bucket, which stage 3
// allocates once. Small parameters stay gathered beside their parts.
void EngineWrapper::declare_shards() {
  levels_ = engine_.gathers_by_layer() ? levels_by_layer() : gather_levels();
  const FlatLayout::Shards& shards = layout_.shards();
  TensorId made = kNoTensor;
  const auto persistent = [&](const char* name, Bytes size, Category category) {
    made = b_.tensor_in(kNoGroup, name, size, category, Residency::persistent);
    return size;
  };
  if (!engine_.offload.params) {
    s_.states.parameters =
        persistent("lp_param_buffer",
                   strategy_.quantize ? parts_that_train(false) + parts_that_train(true)
                                      : b_.rounded(shards.stored),
                   Category::parameters);
    flat_ = made;
    if (strategy_.quantize && b_.keeps_blocks()) b_.parts(flat_, {parts_that_train(true)});
  }
  if (engine_.ranks > 1 || engine_.offload.params)
    s_.states.parameters += persistent("persistent_parameters",
                                       b_.rounded(shards.stored_persistent), Category::parameters);
  if (strategy_.quantize) declare_frozen();
  declare_optimizer(shards.trained);
  if (!engine_.offload.optimizer)
    s_.states.gradients =
        persistent("grad_partitions_flat_buffer", bytes(shards.trained, engine_.accumulation),
                   Category::gradients);
  else
    s_.states.gradients = gradients_that_stay();
  bucket_ = b_.tensor_in(kNoGroup, "ipg_bucket", gradients(engine_.options.reduce_bucket_size),
                         Category::communication, Residency::persistent);
}

// fp16 (stage3.py, has_overflow): torch.isinf of all gradients at once makes their magnitudes and
// a byte of each, on the stream that reduces.
void EngineWrapper::check_overflow(std::int64_t elements) {
  if (engine_.model != DType::fp16) return;
  const auto made = [&](const char* name, DType dtype) {
    return b_.tensor_in(kNoGroup, name, bytes(elements, dtype), Category::temporaries,
                        Residency::step, models::Stream::reduce);
  };
  const TensorId magnitudes = made("zero.overflow.abs", engine_.accumulation);
  const TensorId infinite = made("zero.overflow.isinf", DType::boolean);
  b_.op("zero.overflow", Phase::optimizer).write(magnitudes);
  b_.op("zero.overflow", Phase::optimizer).read(magnitudes).write(infinite);
  b_.op("zero.overflow", Phase::optimizer).read(infinite);
  // Then isnan; of each answer one value is made.
  const Bytes gradients = storage(Count(elements), engine_.accumulation);
  b_.work().moves((4 * gradients + 4 * storage(Count(elements), DType::boolean)).real(), 6);
}

// One sub-group after another: flat 16-bit gradients, their fp32 copy, the optimizer's step. They
// stand here once, for the largest; their work is that of all.
void EngineWrapper::sub_group_step() {
  if (engine_.offload.optimizer) {
    auto out = b_.op("zero3.swap_out", Phase::optimizer);
    for (const TensorId gradient : unswapped_) out.release(gradient);
    unswapped_.clear();
    return;
  }
  const FlatLayout::Shards& shards = layout_.shards();
  check_overflow(shards.trained);
  b_.op("zero.grad_norm", Phase::optimizer).scratch(bytes(shards.largest, DType::fp64));
  norm_work(shards.trained, engine_.accumulation);
  const TensorId flat = b_.tensor("zero.flat_grad", bytes(shards.sub_group, engine_.accumulation),
                                  Category::temporaries);
  b_.op("zero.flatten", Phase::optimizer).write(flat);
  copy_work(shards.trained, engine_.accumulation, engine_.accumulation);
  TensorId single = flat;
  const Bytes state = bytes(shards.sub_group, engine_.state);
  if (engine_.state != engine_.accumulation) {
    single = b_.tensor("zero.single_grad_partition", state, Category::gradients);
    b_.op("zero.to_fp32", Phase::optimizer).read(flat).write(single);
    copy_work(shards.trained, engine_.accumulation, engine_.state);
  }
  const TensorId root = square_root(state);
  b_.op("optimizer.step", Phase::optimizer).read(single).write(root);
  step_work(shards.trained);
  if (engine_.offload.params)  // cast on the device, then copied
    b_.op("zero3.copy_back", Phase::optimizer)
        .read(single)
        .scratch(bytes(shards.sub_group, engine_.model));
}

}  // namespace plimsoll::planner::deepspeed
