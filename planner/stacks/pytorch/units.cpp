// What is handled together: units of parameters, runs of equal layers.
#include "models/decisions/layer.h"
#include "planner/stacks/pytorch/compiled/compiled_block.h"
#include "planner/stacks/pytorch/step_writer.h"

namespace plimsoll::planner::pytorch {

using models::RecomputeKind;

void StepWriter::size_unit(Unit& unit, const std::vector<Parameter>& parameters,
                           models::GroupId group) {
  unit = {};
  unit.parameters = &parameters;
  unit.group = group;
  wrapper_->size(unit);
}

// Which of FSDP2's units the parameters outside the layers belong to (FsdpUnits). Without FSDP2 the
// unit is only a place to keep gradients in: root.
void StepWriter::plan_end_units() {
  const models::Decoder& d = s_.d;
  const std::int64_t table = checked_multiply(d.vocab, d.table_width());
  const bool accelerate = s_.rules.fsdp_units == FsdpUnits::accelerate;
  const bool apart = accelerate || s_.rules.fsdp_units == FsdpUnits::ends;
  s_.table_unit = apart ? &s_.embedding : &s_.root;
  s_.head_unit = d.tied_head ? s_.table_unit : apart ? &s_.tail : &s_.root;
  // Accelerate looks for it among the children of the base model (_find_final_norm). OPT's are its
  // decoder alone; and what a model of PEFT's calls "model" is no base model.
  const bool found = s_.parts.norm_under_base && !(s_.strategy.lora && s_.parts.base_is_model);
  s_.norm_unit = accelerate && found ? s_.head_unit : &s_.root;
  const auto add = [&](Unit* unit, const Parameter& p) {
    (unit == &s_.root        ? root_parameters_
     : unit == &s_.embedding ? embedding_parameters_
                             : tail_parameters_)
        .push_back(p);
  };
  for (const Parameter& p : s_.parts.embedding)
    add(p.elements == table ? s_.table_unit : &s_.root, p);
  for (const Parameter& p : s_.parts.tail)
    add(p.elements != table ? s_.norm_unit : d.tied_head ? s_.table_unit : s_.head_unit, p);
  size_unit(s_.root, root_parameters_, models::kNoGroup);
  size_unit(s_.embedding, embedding_parameters_, models::kNoGroup);
  size_unit(s_.tail, tail_parameters_, models::kNoGroup);
  // What holds the head serves the backward with what the forward gathered.
  s_.embedding.reshards = s_.strategy.data.zero >= 3 && !(accelerate && d.tied_head);
  s_.tail_is_head = s_.norm_unit != &s_.tail;
  // torchtune resharded it; its model returns logits.
  if (d.holds_stream && !s_.tail.empty()) {
    s_.tail.reshards = s_.strategy.data.zero >= 3;
    s_.tail.regathered = s_.tail.reshards ? 1 : 0;
    if (s_.heads_parts()) s_.tail.calls = kHeadParts;
  }
  s_.loss_prefetches =
      !d.holds_stream && (s_.head_unit == &s_.root || (d.tied_head && !accelerate));
}

// A group of layers goes on where one differs from those before it (Gemma 3's sixth); a run does
// not.
void StepWriter::refuse_groups_of_unlike_layers() const {
  const bool unlike = s_.parts.runs.size() > 1 || s_.parts.runs.front().period() > 1;
  const bool groups =
      models::decisions::layers_per_checkpoint(s_.strategy.recompute, s_.parts.decoder.layers) > 1;
  check(!unlike || !s_.recomputes() || !groups, ErrorKind::unsupported,
        "--recompute: checkpoints of several layers are not modelled where layers alternate");
}

void StepWriter::add_runs() {
  refuse_groups_of_unlike_layers();
  for (const LayerRun& layers : s_.parts.runs) {
    const std::int64_t k =
        models::decisions::layers_per_checkpoint(s_.strategy.recompute, layers.count);
    const bool alternates = layers.period() > 1;
    if (wrapper_->keeps_last_layer() && &layers == &s_.parts.runs.back()) {
      add_run(layers, layers.first, layers.count - 1, 1);
      add_run(layers, layers.first + layers.count - 1, 1, 1);
      s_.runs.back().units.front().reshards = false;
      continue;
    }
    const std::int64_t stride = alternates ? layers.period() : k;
    const std::int64_t whole = layers.count / stride, rest = layers.count % stride;
    // The one that reads the embedding is unlike the others where the stream widens in it.
    const bool widens = layers.first == 0 && s_.regime.embedded != s_.regime.residual;
    const std::int64_t apart = widens && whole > 1 ? 1 : 0;
    add_run(layers, layers.first, apart, stride);
    add_run(layers, layers.first + apart * stride, whole - apart, stride);
    add_run(layers, layers.first + whole * stride, rest == 0 ? 0 : 1, rest);
  }
}

// `count` instances of `stride` layers.
void StepWriter::add_run(const LayerRun& layers, std::int64_t first, std::int64_t count,
                         std::int64_t stride) {
  if (count == 0) return;
  Run run;
  run.layers = &layers;
  run.recomputed = models::decisions::recomputes_layer(s_.strategy.recompute, first);
  run.group = s_.b.group("layers", first, count, stride);
  run.units.resize(static_cast<std::size_t>(stride));
  for (std::size_t j = 0; j < run.stride(); ++j)
    size_unit(run.units[j], run.layer(j).parameters, run.group);
  run.saved.resize(run.stride());
  run.kept.resize(run.stride());
  for (const LayerPart& layer : layers.pattern) {
    const bool embedded = first == 0 && run.plans.empty();
    run.plans.emplace_back(layer, s_.regime, embedded ? s_.regime.embedded : s_.regime.residual,
                           layers.input_grad);
  }
  if (s_.strategy.recompute.kind == RecomputeKind::ops && !s_.compiles())
    for (BlockPlan& plan : run.plans) plan.store_by_op(s_.strategy.recompute);
  // A backward holds places in it while the recomputation fills them.
  for (std::size_t j = 0; j < run.stride(); ++j) run.saved[j].begin(run.plan(j));
  if (s_.compiles()) {
    // Layers left without a checkpoint are compiled without one.
    const models::Recompute own = run.recomputed ? s_.strategy.recompute : models::Recompute{};
    for (const BlockPlan& plan : run.plans)
      run.compiled.push_back(CompiledBlock(s_.layer).compile(plan, own));
  }
  run.compiled_saved.resize(run.stride());
  run.prefixes.resize(run.stride());
  run.count = count;
  s_.runs.push_back(std::move(run));
}

}  // namespace plimsoll::planner::pytorch
