#include "planner/stacks/pytorch/step_writer.h"

#include "models/decisions/mesh.h"
#include "planner/stacks/pytorch/compiled/compiled_block.h"

namespace plimsoll::planner::pytorch {

StepWriter::StepWriter(models::StepProgram& program, const ModelParts& parts,
                       const models::Strategy& strategy, const models::Batch& batch,
                       const Rules& rules, const MakeWrapper& make_wrapper)
    : s_(program, parts, strategy, batch, rules),
      checkpoints_(s_),
      offloading_(s_),
      wrapper_(make_wrapper(s_, checkpoints_)),
      embedding_(s_, *wrapper_),
      head_(s_, *wrapper_) {
  s_.wrapper = wrapper_.get();
  if (strategy.offload.activations && strategy.kernels != models::Kernels::unsloth)
    s_.offloading = &offloading_;
}

void StepWriter::write() {
  if (s_.rules.each_parameter) s_.b.keep_blocks(&blocks_);
  declare_states();
  declare_inputs();
  s_.accumulated = value_of(s_.batch, StepVariable::grad_accum);
  s_.micros = smaller(s_.accumulated, kDistinctMicroBatches);
  micro_batches();
  s_.b.begin(models::Section::optimizer);
  wrapper_->optimizer_step();
}

void StepWriter::declare_states() {
  s_.b.keep_work(s_.rules.works);
  plan_end_units();
  add_runs();
  s_.states = {};
  wrapper_->declare_states();
}

void StepWriter::write_optimizer() {
  declare_states();
  wrapper_->optimizer_step();
}

void StepWriter::write_messages(Messages& out) {
  plan_end_units();
  add_runs();
  wrapper_->write_messages(out);
  if (s_.d.sequence_parts > 1) write_sequence_messages(out);
}

void StepWriter::add_start(Start& start) const {
  for (const TensorId workspace : workspaces_) start.take_at_first_use(workspace);
  start.set_scratch(blocks_);
  wrapper_->add_start(start);
}

std::vector<EqualRanks> StepWriter::ranks() const {
  return wrapper_->alike();
}

std::vector<EqualRanks> Wrapper::alike() const {
  return equal_ranks(models::decisions::mesh_of(strategy_).ranks(), group(),
                     [&](std::int64_t rank) { return held_by(rank); });
}

// Equal micro-batches between the first and the last are written once.
void StepWriter::micro_batches() {
  for (std::int64_t i = 0; i < s_.micros; ++i) {
    const bool middle = s_.micros == 3 && i == 1;
    micro_batch(i, middle ? s_.accumulated - 2 : SymInt(1));
  }
}

void StepWriter::micro_batch(std::int64_t index, SymInt times) {
  s_.micro = index;
  s_.times = times;
  for (Unit* unit : {&s_.root, &s_.embedding, &s_.tail}) wrapper_->declare(*unit);
  for (Run& run : s_.runs) declare_layers(run);
  s_.d_embedded = s_.parts.runs.front().input_grad
                      ? s_.b.tensor("embeddings.out.grad",
                                    storage(s_.stream_tokens() * s_.d.hidden, s_.regime.embedded),
                                    Category::temporaries)
                      : kNoTensor;
  s_.layer.set_sink(wrapper_.get());
  wrapper_->begin_micro_batch();
  if (s_.offloading != nullptr) s_.offloading->begin();
  embedding_.forward();
  for (std::size_t r = 0; r < s_.runs.size(); ++r) layers_forward(r);
  wrapper_->after_layers();
  head_.finish_model();
  s_.b.begin(models::Section::loss);
  head_.loss_forward();
  head_.backward();
  s_.b.begin(models::Section::layers);
  wrapper_->before_layers_backward();
  for (std::size_t r = s_.runs.size(); r-- > 0;) layers_backward(r);
  embedding_.backward();
  if (s_.offloading != nullptr) s_.offloading->finish();
  if (!wrapper_->ends_before_graph()) leave_checkpoints();
  wrapper_->end_backward();
  if (wrapper_->ends_before_graph()) {
    leave_checkpoints();
    embedding_.leave_leaf();
  }
  if (s_.graph_keeps() && !models::is_litgpt(s_.strategy.code)) drop_graph();
}

void StepWriter::leave_checkpoints() {
  if (!s_.reentrant() || wrapper_->leaves_checkpoints()) return;
  s_.b.open(models::kNoGroup, true, s_.times);
  checkpoints_.leave_all();
  s_.b.close();
}

// Autograd's nodes go with the loss, whose name is the loop's: what attributes of them hold lives
// until then.
void StepWriter::drop_graph() {
  for (const Run& run : s_.runs) {
    s_.b.open(run.group, false, s_.times);
    for (std::size_t j = 0; j < run.stride(); ++j) {
      s_.b.at_layer(static_cast<std::uint16_t>(j));
      auto graph = s_.b.op("loss.graph", Phase::backward);
      Step::release_attributes(graph, s_.saved_by_forward(run, j));
      s_.b.work().moves(0, 0);
    }
    s_.b.close();
  }
}

// A run's residual stream and its gradients, and what its units need.
void StepWriter::declare_layers(Run& run) {
  run.inner.resize(run.stride() - 1);
  run.d_inner.resize(run.stride() - 1);
  const SymBytes stream = s_.b.rounded(s_.stream_bytes());
  ProgramBuilder::Place layer = s_.b.place();
  for (std::size_t j = 0; j < run.stride(); ++j) {
    s_.b.at_layer(static_cast<std::uint16_t>(j));
    const ProgramBuilder::Place before = std::exchange(layer, s_.b.place());
    wrapper_->declare(run.units[j]);
    const bool last = j + 1 == run.stride();
    (last ? run.out : run.inner[j]) =
        s_.b.tensor_in(run.group, "out", stream, Category::activations);
    (last ? run.d_out : run.d_inner[j]) =
        s_.b.tensor_in(run.group, "out.grad", stream, Category::temporaries);
    if (j > 0 && !run.alternates()) s_.b.note_repeat(before, layer);
  }
  s_.b.at_layer(0);
}

void StepWriter::layers_forward(std::size_t r) {
  Run& run = s_.runs[r];
  const bool saves = !s_.recomputes(run), takes_all = s_.offloading != nullptr && s_.regime.by_node;
  s_.b.open(run.group, false, s_.times);
  s_.layer.set(Phase::forward, saves);
  ProgramBuilder::Place layer = s_.b.place();
  for (std::size_t j = 0; j < run.stride(); ++j) {
    const ProgramBuilder::Place before = std::exchange(layer, s_.b.place());
    s_.b.at_layer(static_cast<std::uint16_t>(j));
    if (s_.parts.prefix_tokens > 0) s_.layer.set_prefix(&run.prefixes[j]);
    if (takes_all)
      s_.offloading->enter_layer(r);
    else if (s_.offloading != nullptr)
      s_.offloading->before_layer(r, j);
    s_.layer.set_hooks(takes_all ? s_.offloading : nullptr);
    s_.layer.cast_tables(run.plan(j));
    wrapper_->before_forward(run.units[j], s_.unit_tensor(&Unit::gather_forward, r, j, -1));
    const Ref out{j + 1 < run.stride() ? run.inner[j] : run.out};
    if (s_.compiles())
      CompiledBlock(s_.layer).forward(run.compiled_layer(j), run.plan(j), s_.input_of(r, j), out,
                                      run.compiled_saved[j]);
    else
      s_.layer.forward(run.plan(j), s_.input_of(r, j), out, saves ? run.saved[j] : run.kept[j]);
    s_.layer.set_hooks(nullptr);
    if (takes_all) s_.offloading->leave_layer();
    if (run.units[j].reshards) wrapper_->after_forward(run.units[j]);
    if (j > 0 && !run.alternates()) s_.b.note_repeat(before, layer);
  }
  if (!run.layer(0).block->returned.empty()) {
    auto next = s_.b.op("model.layers", Phase::forward);
    s_.drop_returned(next, r, -1);
  }
  s_.b.close();
}

// Before the backward of a checkpoint, or of a layer by itself.
void StepWriter::enter_checkpoint(std::size_t r, std::size_t last) {
  wrapper_->before_checkpoint_backward(r, last + 1 - s_.runs[r].checkpoint(), last);
  checkpoints_.enter(last);
}

void StepWriter::layers_backward(std::size_t r) {
  Run& run = s_.runs[r];
  if (!run.layers->input_grad && !run.layers->trains()) return;  // no gradient comes here
  const bool again = s_.recomputes(run);
  const bool leaves = again && s_.reentrant() && !wrapper_->leaves_checkpoints();
  const bool takes_all = s_.offloading != nullptr && s_.regime.by_node;
  s_.b.open(run.group, true, s_.times);
  if (!run.alternates()) enter_checkpoint(r, run.stride() - 1);
  checkpoints_.begin(run);
  s_.layer.set(Phase::backward, true);
  ProgramBuilder::Place layer = s_.b.place();
  for (std::size_t j = run.stride(); j-- > 0;) {
    if (run.alternates()) enter_checkpoint(r, j);
    const ProgramBuilder::Place before = std::exchange(layer, s_.b.place());
    s_.b.at_layer(static_cast<std::uint16_t>(j));
    const bool first = j % run.checkpoint() == 0;  // of a checkpoint
    if (s_.parts.prefix_tokens > 0) s_.layer.set_prefix(&run.prefixes[j]);
    wrapper_->before_layer_backward(r, j);
    s_.unit = &run.units[j];
    s_.unit->next = 0;
    const TensorId d_out = j + 1 < run.stride() ? run.d_inner[j] : run.d_out;
    const Ref input = again && !first ? Ref{run.made_again[j - 1]}
                      : again         ? s_.checkpoint_input(r, j)
                                      : s_.input_of(r, j);
    checkpoints_.before_layer(r, j);
    if (takes_all) s_.offloading->enter_layer_backward(r);
    s_.layer.set_hooks(takes_all ? s_.offloading : nullptr);
    if (s_.compiles())
      CompiledBlock(s_.layer).backward(run.compiled_layer(j), run.plan(j), input, d_out,
                                       s_.input_gradient_of(r, j), run.compiled_saved[j]);
    else
      s_.layer.backward(run.plan(j), input, d_out, s_.input_gradient_of(r, j), run.saved[j]);
    s_.layer.set_hooks(nullptr);
    if (takes_all) s_.offloading->leave_layer_backward();
    if (run.plan(j).input_grad())
      wrapper_->after_backward(run.units[j], s_.unit_tensor(&Unit::reduce_in, r, j, +1));
    if (!run.alternates() && j + 2 < run.stride() && j > 0) s_.b.note_repeat(before, layer);
    if (first && run.alternates() && leaves) checkpoints_.leave();
  }
  if (!run.alternates() && leaves) checkpoints_.leave();
  s_.b.close();
}

}  // namespace plimsoll::planner::pytorch
