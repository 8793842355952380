#include "planner/stacks/pytorch/checkpoints.h"

#include "planner/stacks/pytorch/offloading.h"
#include "planner/stacks/pytorch/wrappers/wrapper.h"

namespace plimsoll::planner::pytorch {

using models::RecomputeKind;

// Runs the forward of a checkpoint's layers again, inside its backward. The last layer's output is
// made anew (and dropped): autograd's own output died when the next instance had used it.
void Checkpoints::recompute() {
  Run& run = *run_;
  const std::size_t r = number(), last = last_, first = last + 1 - run.checkpoint();
  if (s_.offloading != nullptr) s_.offloading->load_input(run, last);
  s_.wrapper->before_recompute(run.units[last]);
  layer_.set(Phase::recompute, true);
  ProgramBuilder::Place layer = b_.place();
  for (std::size_t j = first; j <= last; ++j) {
    const ProgramBuilder::Place before = std::exchange(layer, b_.place());
    b_.at_layer(static_cast<std::uint16_t>(j));
    const TensorId out = run.made_again[j];
    const Ref input = j == first ? s_.checkpoint_input(r, first) : Ref{run.made_again[j - 1]};
    layer_.stop_early(!repeats_to_the_end() && j == last);
    layer_.take_from(strategy_.recompute.kind == RecomputeKind::ops ? &run.kept[j] : nullptr);
    layer_.forward(run.plan(j), input, {out}, run.saved[j]);
    if (j > first && j < last) b_.note_repeat(before, layer);
  }
  if (regime_.autocast) {
    auto exit = b_.op("autocast.exit", Phase::recompute);
    for (std::size_t j = first; j <= last; ++j)
      Step::release_casts(exit, run.layer(j), run.saved[j]);
  }
  layer_.set(Phase::backward, true);
  b_.at_layer(static_cast<std::uint16_t>(last));
  if (!s_.reentrant()) drop_graph(run, Phase::recompute);
  s_.wrapper->after_recompute(run.units[last]);
}

void Checkpoints::node_done() {
  if (s_.offloading != nullptr) s_.offloading->node_done(number(), last_);
}

// Of the recomputed graph only saved tensors stay behind, in a reentrant one until its backward is
// done.
void Checkpoints::drop_graph(const Run& run, Phase phase) {
  if (!s_.graph_keeps()) return;
  auto graph = b_.op("checkpoint.graph", phase);
  for (std::size_t j = last_ + 1 - run.checkpoint(); j <= last_; ++j)
    Step::release_attributes(graph, run.saved[j]);
  b_.work().moves(0, 0);
}

// A reentrant checkpoint's frame holds its input, its output and the output's gradient until the
// backward inside it has returned (torch/utils/checkpoint.py, CheckpointFunction.backward).
void Checkpoints::leave() {
  const Run& run = *run_;
  const bool loaded = s_.input_buffer != kNoTensor;
  const Ref input = loaded ? Ref{} : s_.input_of(number(), last_ + 1 - run.checkpoint());
  const bool last = last_ + 1 == run.stride() && number() + 1 == s_.runs.size();
  b_.op("checkpoint.exit", Phase::backward)
      .release(run.made_again[last_])
      .release(last_ + 1 < run.stride() ? run.d_inner[last_] : run.d_out)
      .touch(input.tensor, input.delta, input.beyond, models::Access::release)
      .touch(kNoTensor, +1, loaded && last ? s_.last_input : kNoTensor, models::Access::release);
  drop_graph(run, Phase::backward);
}

// What all layers were called with goes when the outermost backward returns.
void Checkpoints::leave_all() {
  auto exit = b_.op("checkpoint.exit", Phase::backward);
  for (const ByWindow* tensors : {&s_.cos, &s_.sin, &s_.masks})
    exit.release(tensors->front())
        .release(tensors->back() != tensors->front() ? tensors->back() : kNoTensor);
  exit.release(s_.front.position_ids).release(s_.front.alibi);
}

// torchtitan's checkpoints of 0.2.2 run the whole layer again, too (early_stop=False).
bool Checkpoints::repeats_to_the_end() const {
  return s_.reentrant() || strategy_.code == models::ModelCode::torchtitan_0_2_2;
}

// What a recomputation that stops early leaves where the policy keeps it.
std::array<Ref, 2> Checkpoints::never_taken(const Run& run, std::size_t layer) const {
  const BlockPlan& plan = run.plan(layer);
  std::array<Ref, 2> never;
  if (repeats_to_the_end()) return never;
  const bool taken = !plan.nodes[plan.last_save].ends_recomputation();
  std::size_t count = 0;
  for (std::size_t i = plan.last_save + (taken ? 1 : 0); i < plan.nodes.size(); ++i)
    if (plan.nodes[i].stored) never.at(count++) = {run.kept[layer].of(plan.nodes[i].node->out[0])};
  return never;
}

void Checkpoints::before_layer(std::size_t r, std::size_t j) {
  const Run& run = s_.runs[r];
  const std::size_t layers = run.checkpoint();
  const bool on = s_.recomputes(run), waits = on && (j + 1) % layers == 0;
  layer_.set_checkpoint(waits ? this : nullptr, on);
  const std::size_t window = run.plan(j).sliding ? 1 : 0;
  const bool stays = s_.offloading == nullptr && s_.input_buffer == kNoTensor;
  const Ref input = stays ? s_.input_of(r, j / layers * layers) : Ref{};
  const auto [never, never_scattered] = never_taken(run, j);
  layer_.hold({input, Ref{s_.cos[window]}, Ref{s_.sin[window]}, Ref{s_.masks[window]},
               Ref{s_.front.position_ids}, Ref{s_.front.alibi}, never, never_scattered},
              j % layers == 0);
}

// The outputs of a checkpoint's layers that its backward holds: all but the last one's, which is
// made only where the whole layer is run again.
void Checkpoints::begin(Run& of) {
  run_ = &of;
  Run& run = of;
  run.made_again.resize(run.stride(), kNoTensor);
  if (!s_.recomputes(run)) return;
  if (s_.offloading != nullptr) s_.offloading->declare(run);
  const SymBytes stream = s_.stream_bytes();
  ProgramBuilder::Place layer = b_.place();
  bool any = false;
  for (std::size_t j = 0; j < run.stride(); ++j) {
    if ((j + 1) % run.checkpoint() == 0 && !repeats_to_the_end()) continue;
    const ProgramBuilder::Place before = std::exchange(layer, b_.place());
    b_.at_layer(static_cast<std::uint16_t>(j));
    run.made_again[j] = b_.tensor("out.recomputed", stream, Category::activations);
    if (std::exchange(any, true) && !run.alternates()) b_.note_repeat(before, layer);
  }
}

}  // namespace plimsoll::planner::pytorch
