// Checkpoints around layers: what runs again, what is held for that and until when.
#include "models/decisions/layer.h"
#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

using models::RecomputeKind;

// Runs the forward of a checkpoint's layers again, inside its backward. The last layer's output is
// made anew (and dropped): autograd's own output died when the next instance had used it.
void StepWriter::recompute() {
  Run& run = *checkpoint_;
  const auto r = static_cast<std::size_t>(checkpoint_ - runs_.data());
  const std::size_t last = last_of_checkpoint_, first = last + 1 - run.checkpoint();
  layer_.set(Phase::recompute, true);
  ProgramBuilder::Place layer = b_.place();
  for (std::size_t j = first; j <= last; ++j) {
    if (b_.resizes() && j > first && j < last) {
      layer = b_.repeat_since(layer);
      continue;
    }
    b_.at_layer(static_cast<std::uint16_t>(j));
    const TensorId out = run.recomputed[j];
    const Ref input = j == first ? input_of(r, first) : Ref{run.recomputed[j - 1]};
    layer_.stop_early(!repeats_to_the_end() && j == last);
    layer_.take_from(strategy_.recompute.kind == RecomputeKind::ops ? &run.kept[j] : nullptr);
    layer_.forward(run.plan(j), input, {out}, run.saved[j]);
  }
  if (regime_.autocast) {
    auto exit = b_.op("autocast.exit", Phase::recompute);
    for (std::size_t j = first; j <= last && !b_.resizes(); ++j)
      release_casts(exit, run.layer(j), run.saved[j]);
  }
  layer_.set(Phase::backward, true);
  b_.at_layer(static_cast<std::uint16_t>(last));
}

bool StepWriter::reentrant() const {
  return models::decisions::reentrant_checkpoints(strategy_);
}

// A reentrant checkpoint's frame holds its input, its output and the output's gradient until the
// backward inside it has returned (torch/utils/checkpoint.py, CheckpointFunction.backward).
void StepWriter::leave_checkpoint() {
  const Run& run = *checkpoint_;
  const std::size_t last = last_of_checkpoint_;
  const Ref input =
      input_of(static_cast<std::size_t>(checkpoint_ - runs_.data()), last + 1 - run.checkpoint());
  b_.op("checkpoint.exit", Phase::backward)
      .release(run.recomputed[last])
      .release(last + 1 < run.stride() ? run.d_inner[last] : run.d_out)
      .touch(input.tensor, input.delta, input.beyond, models::Access::release);
}

// What all layers were called with goes when the outermost backward returns.
void StepWriter::leave_checkpoints() {
  auto exit = b_.op("checkpoint.exit", Phase::backward);
  for (const ByWindow* tensors : {&cos_, &sin_, &masks_})
    exit.release(tensors->front())
        .release(tensors->back() != tensors->front() ? tensors->back() : kNoTensor);
  exit.release(front_.position_ids).release(front_.alibi);
}

// torchtitan's checkpoints of 0.2.2 run the whole layer again, too (early_stop=False).
bool StepWriter::repeats_to_the_end() const {
  return reentrant() || strategy_.code == models::ModelCode::torchtitan_0_2_2;
}

// What a recomputation that stops early leaves where the policy keeps it.
TensorId StepWriter::never_taken(const Run& run, std::size_t layer) const {
  const BlockPlan& plan = run.plan(layer);
  const NodePlan& last = plan.nodes[plan.last_save];
  return last.stored && !repeats_to_the_end() ? run.kept[layer].of(last.node->out[0]) : kNoTensor;
}

// The outputs of a checkpoint's layers that its backward holds: all but the last one's, which is
// made only where the whole layer is run again.
void StepWriter::declare_recomputed(Run& run) {
  run.recomputed.resize(run.stride(), kNoTensor);
  if (!recomputes()) return;
  const Bytes stream =
      storage(Count(checked_multiply(tokens_.total(), d_.hidden)), regime_.residual);
  ProgramBuilder::Place layer = b_.place();
  bool any = false;
  for (std::size_t j = 0; j < run.stride(); ++j) {
    if ((j + 1) % run.checkpoint() == 0 && !repeats_to_the_end()) continue;
    if (b_.resizes() && any && !run.alternates()) {
      layer = b_.repeat_since(layer);
      continue;
    }
    any = true;
    b_.at_layer(static_cast<std::uint16_t>(j));
    run.recomputed[j] = b_.tensor("out.recomputed", stream, Category::activations);
  }
}

}  // namespace plimsoll::planner::pytorch
