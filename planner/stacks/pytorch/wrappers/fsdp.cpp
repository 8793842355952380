#include "planner/stacks/pytorch/wrappers/fsdp.h"

namespace plimsoll::planner::pytorch {

using Part = Message::Part;

namespace {

// Of a run's first layer, among those of every run's pattern.
std::size_t place_of(const ModelParts& parts, const Run& run) {
  std::size_t place = 0;
  for (const LayerRun* before = parts.runs.data(); before != run.layers; ++before)
    place += before->pattern.size();
  return place;
}

}  // namespace

void Fsdp::after_forward(Unit& unit) {
  b_.op("fsdp.reshard", Phase::forward)
      .release(unit.full_forward)
      .release(unit.holds_shard ? unit.cast_forward : kNoTensor);
}

// The last unit that was gathered keeps its all-gather output until the root's forward returns.
void Fsdp::after_model() {
  b_.op("fsdp.free_all_gather", Phase::forward)
      .touch(s_.tail.empty() ? s_.runs.back().units.back().gather_forward : s_.tail.gather_forward,
             s_.tail.empty() ? -1 : 0, kNoTensor, models::Access::release);
}

void Fsdp::before_checkpoint_backward(std::size_t r, std::size_t first, std::size_t last) {
  Run& run = s_.runs[r];
  for (std::size_t j = last + 1; j-- > first;) {
    b_.at_layer(static_cast<std::uint16_t>(j));
    if (j < last) prefetch_in_checkpoint(run.units[j]);
    before_backward(run.units[j]);
  }
  if (first == last) prefetch_before(r, first);
}

// The hook before a layer's backward prefetches the one that ran before it; recomputing has
// gathered those of the same checkpoint.
void Fsdp::before_layer_backward(std::size_t r, std::size_t layer) {
  const std::size_t layers = s_.runs[r].checkpoint();
  if (layers > 1 && layer % layers == 0) prefetch_before(r, layer);
}

// A first layer whose input takes no gradient is reduced when the backward ends.
void Fsdp::end_backward() {
  Run& run = s_.runs.front();
  if (run.layers->input_grad || !run.layers->trains()) return;
  // What was gathered ahead for the embedding's backward, which never comes, goes first.
  b_.open(models::kNoGroup, true, s_.times);
  b_.op("fsdp.reshard", Phase::backward).release(s_.embedding.gather_backward);
  b_.close();
  b_.open(run.group, true, s_.times);
  for (std::size_t j = run.stride(); j-- > 0;) {
    b_.at_layer(static_cast<std::uint16_t>(j));
    after_backward(run.units[j], s_.unit_tensor(&Unit::reduce_in, 0, j, +1));
  }
  b_.close();
}

// What the backward gathers is what its pass comes by, and the unit that stands before that one,
// which it has fetched ahead.
void Fsdp::write_messages(Messages& out) {
  s_.tail.part = Part::tail;
  bool fetched = true;
  for (std::size_t r = s_.runs.size(); r-- > 0;) {
    Run& run = s_.runs[r];
    const bool goes_back = run.layers->input_grad || run.layers->trains();
    const auto period = static_cast<std::int64_t>(run.plans.size());
    for (std::size_t j = 0; j < run.plans.size(); ++j) {
      Unit& unit = run.units[j];
      unit.part = Part::layer;
      unit.layer = place_of(parts_, run) + j;
      unit.copies = run.count * (std::ssize(run.units) / period);
      unit.regathered = !unit.reshards ? 0 : goes_back ? unit.copies : 0;
      if (unit.reshards && !goes_back && fetched && j + 1 == run.plans.size()) unit.regathered = 1;
    }
    fetched = goes_back;
  }
  if (s_.embedding.reshards && fetched) s_.embedding.regathered = 1;
  for (const Unit* unit : {&s_.root, &s_.embedding})
    if (!unit->empty()) add_messages(*unit, out);
  for (const Run& run : s_.runs)
    for (std::size_t j = 0; j < run.plans.size(); ++j) add_messages(run.units[j], out);
  if (!s_.tail.empty()) add_messages(s_.tail, out);
}

}  // namespace plimsoll::planner::pytorch
