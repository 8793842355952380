#include "planner/stacks/pytorch/step.h"

#include "models/bitsandbytes.h"
#include "models/decisions/layer.h"
#include "models/decisions/mesh.h"
#include "models/host_optimizer.h"

namespace plimsoll::planner::pytorch {

Tokens::Tokens(const models::Batch& batch, models::Rows of, std::int64_t ahead,
               std::int64_t keys_ahead)
    : rows(of),
      sequences(value_of(batch, StepVariable::micro_batch)),
      length(batch.seq_len + ahead),
      prefix(keys_ahead),
      samples(value_of(batch, StepVariable::samples)),
      real(value_of(batch, StepVariable::real_tokens)) {
  if (of == models::Rows::flattened) {
    length = value_of(batch, StepVariable::tokens);
    sequences = 1;
  }
  total_ = sequences * length;
}

Step::Step(models::StepProgram& program, const ModelParts& of, const models::Strategy& chosen,
           const models::Batch& of_step, const Rules& given)
    : b(program, given.granularity),
      parts(of),
      d(of.decoder),
      strategy(chosen),
      batch(of_step),
      rules(given),
      tokens(of_step, chosen.rows, of.virtual_tokens, of.prefix_tokens),
      text(of_step, chosen.rows),
      regime(regime_of(chosen, chosen.data.zero >= 2, given.fsdp_autocast)),
      layer(b, d, regime, rules, strategy, tokens) {
  // Without FSDP2 there are no units at the ends.
  if (chosen.data.zero < 2 || is_fsdp1(chosen)) rules.fsdp_units = FsdpUnits::root;
  regime.patch = kernel_patch(of.model_type, chosen);
  set_stream(regime, chosen, d);
  // The clock takes a first layer that reads 16 bits for one like the others.
  if (given.works != nullptr) regime.embedded = regime.residual;
  if (models::has_host_optimizer(chosen)) strategy.optimizer_impl = models::OptimizerImpl::fused;
  if (chosen.data.zero < 2) return;
  shards = models::decisions::mesh_of(chosen)[models::decisions::Axis::shard].ranks;
  // FSDP1's parts of flat parameters begin and end elsewhere with each number of ranks.
  if (!is_fsdp1(chosen)) shards = value_of_shards(shards);
}

bool Step::reentrant() const {
  return models::decisions::reentrant_checkpoints(strategy);
}

DType Step::stored(const Parameter& p) const {
  if (p.packed != nullptr) return strategy.quantize->held_in;
  if (p.bias_of_packed) return bias_dtype(p);
  if (p.adapter && strategy.quantize) return strategy.lora->dtype;  // no upcast (regime.h)
  if (p.adapter) return regime.adapter == strategy.lora->dtype ? regime.adapter : regime.stored;
  if (models::casts_behind_kbit(strategy) && (p.embedding || !p.hidden)) return regime.weight;
  // Accelerate upcasts trainable parameters only.
  if (!p.trainable && !models::kbit_prepared(strategy) && strategy.param_dtype &&
      strategy.stack != models::Stack::deepspeed)
    return *strategy.param_dtype;
  return regime.stored;
}

// Linear8bitLt stores its bias in the dtype of what it reads (forward), Linear4bit and QuantLinear
// in the one they compute in.
DType Step::bias_dtype(const Parameter& p) const {
  if (!models::stores_bias_as_it_reads(strategy) || runs.empty()) return regime.compute;
  const BlockPlan& plan = runs.front().plan(0);
  for (const NodePlan& at : plan.nodes)
    if (at.node == &plan.layer->block->nodes[static_cast<std::size_t>(p.node)])
      return plan.value(at.node->in[0]).dtype;
  return regime.compute;
}

DType Step::seen(const Parameter& p) const {
  if (p.packed != nullptr) return strategy.quantize->held_in;
  if (p.bias_of_packed) return bias_dtype(p);
  return p.adapter ? regime.adapter : regime.weight;
}

bool Step::final_grad() const {
  const LayerRun& last = parts.runs.back();
  return last.input_grad || last.trains();
}

bool Step::embedding_grad() const {
  return parts.train_embedding || parts.train_positions_any() || parts.trains_types() ||
         parts.virtual_tokens > 0 || leaf_input();
}

bool Step::leaf_input() const {
  return forces_input_gradient(strategy) && !parts.train_embedding && !parts.train_positions_any();
}

Ref Step::input_of(std::size_t r, std::size_t in_run) const {
  const Run& run = runs[r];
  if (in_run > 0) return {run.inner[in_run - 1]};
  return {run.out, -1, r == 0 ? hidden : runs[r - 1].out};
}

Ref Step::input_gradient_of(std::size_t r, std::size_t in_run) const {
  const Run& run = runs[r];
  if (in_run > 0) return {run.d_inner[in_run - 1]};
  return {run.d_out, -1, r == 0 ? d_embedded : runs[r - 1].d_out};
}

Ref Step::unit_tensor(TensorId Unit::*tensor, std::size_t run, std::size_t in_run, int step) const {
  const Run& here = runs[run];
  const std::size_t last = here.stride() - 1;
  if (step < 0 && in_run > 0) return {here.units[in_run - 1].*tensor};
  if (step > 0 && in_run < last) return {here.units[in_run + 1].*tensor};
  // The last unit gathered before the layers, and the one that is next after them.
  TensorId beyond = kNoTensor;
  if (step < 0 && run == 0)
    beyond = embedding.*tensor != kNoTensor ? embedding.*tensor : root.*tensor;
  else if (step < 0)
    beyond = runs[run - 1].units.back().*tensor;
  else
    beyond = run + 1 == runs.size() ? tail.*tensor : runs[run + 1].units.front().*tensor;
  return {step < 0 ? here.units[last].*tensor : here.units[0].*tensor, step, beyond};
}

// The model's loop holds what a layer returned beside the stream until the next one has returned; a
// checkpoint of several layers runs them in a loop of its own, which does not.
void Step::drop_returned(OpBuilder& op, std::size_t r, int delta) const {
  const auto returned = [&](std::size_t run, models::ValueId id) {
    return saved_by_forward(runs[run], runs[run].stride() - 1).of(id);
  };
  if (runs[r].stride() > 1 || compiles()) return;
  for (const models::ValueId id : runs[r].layer(0).block->returned)
    op.touch(returned(r, id), delta, r == 0 ? kNoTensor : returned(r - 1, id),
             models::Access::release);
}

void Step::release_casts(OpBuilder exit, const LinearPart& part, const LinearSaved& saved) {
  if (part.train_weight) exit.release(saved.base.weight_cast);
  if (part.bias && part.train_bias) exit.release(saved.base.bias_cast);
  exit.release(saved.a.weight_cast).release(saved.b.weight_cast).release(saved.b.bias_cast);
}

void Step::release_casts(OpBuilder exit, const LayerPart& part, const LayerSaved& saved) {
  for (std::size_t i = 0; i < saved.linears.size(); ++i)
    release_casts(exit, part.linears[i], saved.linears[i]);
}

bool Step::graph_keeps() const {
  return models::contexts_keep_inputs(strategy);
}

void Step::release_attributes(OpBuilder op, const LayerSaved& saved) {
  for (const Ref r : saved.attributes)
    op.touch(r.tensor, r.delta, r.beyond, models::Access::release);
}

Bytes Step::shared_matrices() const {
  const auto bytes = [&](std::int64_t elements) {
    return Bytes(layer.bytes(elements, strategy.lora->dtype));
  };
  return parts.shared_a > 0 ? bytes(parts.shared_a) + bytes(parts.shared_b) : Bytes(0);
}

Bytes Step::frequencies() const {
  if (d.position != models::PositionKind::rope) return {};
  return Bytes(layer.bytes(d.rotated(), DType::fp32)) * (d.has_both_rotaries() ? 2 : 1);
}

std::int64_t Step::scattered() const {
  const bool dp = strategy.data.kind == models::DataParallelKind::dp;
  return dp ? models::decisions::mesh_of(strategy).ranks() : 1;
}

Bytes Step::id_buffers() const {
  return d.token_types > 0 ? Bytes(layer.bytes(parts.position_rows, DType::int64) * 2) : Bytes(0);
}

}  // namespace plimsoll::planner::pytorch
