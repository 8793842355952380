// ZeRO-3 with a packed base, or with frozen weights that reentrant checkpoints hold: what is
// gathered when, and which copies stay.
//
// A packed weight is a parameter as others: it is cut, and gathered for its module; its scales and
// tables are attributes of it and whole on each rank. bitsandbytes 0.50.2 (autograd/_functions.py,
// MatMul4Bit) keeps the weight that it was given as an attribute of the autograd node, and not as a
// saved tensor: a gathered copy lives until the loss goes, whatever the engine or a checkpoint that
// is not reentrant lets go of, and the backward gathers another one. A reentrant checkpoint's
// forward makes no nodes; those of its second forward go with its layer. Int8's module has a copy
// of its own from the start, which its forward puts in the gathered one's place (nn/modules.py,
// Linear8bitLt.forward).
#include <algorithm>

#include "models/decisions/layer.h"
#include "planner/stacks/deepspeed/engine_wrapper.h"
#include "planner/stacks/deepspeed/fetches.h"
#include "planner/stacks/deepspeed/trace.h"

namespace plimsoll::planner::deepspeed {

using models::kNoGroup;
using models::Residency;
using models::Stream;

// The layers' backward is planned run by run.
Levels EngineWrapper::levels_by_layer() {
  if (engine_.ranks == 1 && !engine_.offload.params) return {};
  const Gathered gathered = gathered_along(parts_, layout_, engine_, strategy_, b_.keeps_blocks());
  const auto level = [](const GatheredBlocks& from) { return Level{from.bytes, from.blocks}; };
  const std::vector<Stretch> stretches = stretches_of(gathered);
  backward_levels_.clear();
  for (const Run& run : s_.runs) {
    const std::int64_t behind = std::ssize(gathered.backward) - run.layers->first;
    GatheredBlocks most;
    for (auto stretch = stretches.begin(); stretch != stretches.end(); ++stretch) {
      const bool ends_before = std::next(stretch) != stretches.end() &&
                               std::next(stretch)->from_end <= behind - run.layers->count;
      if (ends_before || stretch->from_end >= behind) continue;
      if (stretch->gathered.bytes > most.bytes) most = stretch->gathered;
    }
    backward_levels_.push_back(level(most));
  }
  Levels out;
  out.forward = level(gathered.forward);
  out.head = level(gathered.head);
  out.head_backward = level(gathered.head_backward);
  out.end = level(gathered.end);
  return out;
}

// Of one layer: what the nodes of its forward have.
Bytes EngineWrapper::in_graph(const Run& run, std::size_t j) const {
  Bytes bytes;
  if (engine_.stage < 3 || engine_.packed_copy != PackedCopy::graph || engine_.ranks == 1 ||
      (s_.recomputes(run) && s_.reentrant()))
    return bytes;
  const auto of = static_cast<std::size_t>(run.layers - parts_.runs.data());
  const FlatLayout::Block& block = layout_.blocks()[of + 1];
  const auto layer = j % run.layers->pattern.size();
  std::size_t at = 0;
  for (std::size_t before = 0; before < layer; ++before)
    at += run.layers->pattern[before].parameters.size();
  const LayerPart& part = run.layers->pattern[layer];
  const std::vector<bool> inputs = inputs_with_grad(part, run.layers->input_grad);
  for (std::size_t p = 0; p < part.parameters.size(); ++p) {
    const Parameter& parameter = part.parameters[p];
    if (parameter.packed == nullptr || block.persistent[at + p] || !inputs[p]) continue;
    bytes += b_.rounded(storage(
        Count(ceil_divide(parameter.elements, engine_.ranks) * engine_.ranks), engine_.packed));
  }
  return bytes;
}

void EngineWrapper::before_forward(pytorch::Unit& unit, pytorch::Ref /*previous*/) {
  if (engine_.stage < 3 || !strategy_.quantize || unit.group == kNoGroup) return;
  const auto run = std::ranges::find(s_.runs, unit.group, &Run::group);
  const auto j = static_cast<std::size_t>(&unit - run->units.data());
  if (in_graph_.empty()) in_graph_.resize(s_.runs.size());
  std::vector<TensorId>& kept = in_graph_[static_cast<std::size_t>(run - s_.runs.begin())];
  kept.push_back(b_.tensor_in(unit.group, "zero3.in_graph", in_graph(*run, j), Category::parameters,
                              Residency::step, Stream::gather));
  if (kept.back() != kNoTensor) b_.op("zero3.keep", Phase::forward).write(kept.back());
}

void EngineWrapper::drop_graph() {
  for (std::size_t r = 0; r < in_graph_.size(); ++r) {
    b_.open(s_.runs[r].group, false, s_.times);
    for (std::size_t j = 0; j < in_graph_[r].size(); ++j) {
      b_.at_layer(static_cast<std::uint16_t>(j));
      if (in_graph_[r][j] != kNoTensor)
        b_.op("loss.graph", Phase::backward).release(in_graph_[r][j]);
    }
    b_.at_layer(0);
    b_.close();
  }
  in_graph_.clear();
}

void EngineWrapper::before_head_backward() {
  if (backward_levels_.empty()) return;
  if (gathered_ != kNoTensor) b_.op("zero3.release", Phase::backward).release(gathered_);
  gathered_ = b_.tensor("zero3.gathered", levels_.head_backward.bytes, Category::parameters,
                        Stream::gather);
  if (gathered_ == kNoTensor) return;
  b_.op("zero3.gather", Phase::backward).write(gathered_);
  if (b_.keeps_blocks()) b_.parts(gathered_, levels_.head_backward.parameters);
}

void EngineWrapper::before_layer_backward(std::size_t run, std::size_t /*layer*/) {
  if (backward_levels_.empty()) return;
  const Level& level = backward_levels_[run];
  gathered_layer_ = b_.tensor_in(s_.runs[run].group, "zero3.gathered", level.bytes,
                                 Category::parameters, Residency::step, Stream::gather);
  if (gathered_layer_ == kNoTensor) return;
  b_.op("zero3.gather", Phase::backward).write(gathered_layer_);
  if (b_.keeps_blocks()) b_.parts(gathered_layer_, level.parameters);
}

void EngineWrapper::after_backward(pytorch::Unit& /*unit*/, pytorch::Ref /*previous*/) {
  if (gathered_layer_ == kNoTensor) return;
  b_.op("zero3.release", Phase::backward).release(gathered_layer_);
  gathered_layer_ = kNoTensor;
}

}  // namespace plimsoll::planner::deepspeed
