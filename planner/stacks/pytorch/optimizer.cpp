// optimizer.step() and zero_grad(set_to_none=True).
#include <algorithm>

#include "models/optimizers.h"
#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

using models::kNoGroup;
using models::OptimizerImpl;

namespace {
// The trained parameters outside of layers that the optimizer steps before the layers', a tied
// table among them, or behind them.
std::vector<Parameter> ends_stepped(const ModelParts& parts, bool before) {
  const std::int64_t table = checked_multiply(parts.decoder.vocab, parts.decoder.table_width());
  std::vector<Parameter> out;
  const auto one = [&](const Parameter& p) {
    if (p.trainable) out.push_back(p);
  };
  for (const Parameter& p : parts.tail)
    if ((parts.decoder.tied_head && p.elements == table) == before) one(p);
  if (before)
    for (const Parameter& p : parts.embedding) one(p);
  return out;
}
}  // namespace

// torch/optim/adamw.py (2.11): foreach makes one list sqrt(exp_avg_sq), a copy of every state that
// the rank steps; for-loop makes sqrt and its quotient for one parameter at a time; fused makes
// nothing. SGD updates in place in all three.
std::vector<TensorId> StepWriter::square_roots() {
  std::vector<TensorId> roots;
  const models::TorchOptimizer& rule = models::rule_of(strategy_.optimizer).torch;
  if (!rule.makes(OptimizerImpl::foreach, strategy_)) return roots;
  const auto add = [&](models::GroupId group, Bytes bytes) {
    roots.push_back(b_.tensor_in(group, rule.temporary, bytes, Category::temporaries));
  };
  if (parallelism_ == DataParallelism::zero_redundancy) {
    for (const Bytes part : partition_blocks()) add(kNoGroup, part);
    return roots;
  }
  const auto add_unit = [&](models::GroupId group, const Unit& unit) {
    if (unit.empty()) return;
    if (!rules_.each_parameter) return add(group, unit.state);
    for (const Parameter& p : *unit.parameters)
      if (p.trainable) add(group, own_part(p));
  };
  const auto add_layers = [&] {
    for (const Run& run : runs_)
      for (const Unit& unit : run.units) add_unit(run.group, unit);
  };
  if (!embedding_.empty() || !rules_.each_parameter) {
    add_unit(kNoGroup, embedding_);
    add_layers();
    add_unit(kNoGroup, tail_);
    add_unit(kNoGroup, root_);
    return roots;
  }
  for (const Parameter& p : ends_stepped(parts_, true)) add(kNoGroup, own_part(p));
  add_layers();
  for (const Parameter& p : ends_stepped(parts_, false)) add(kNoGroup, own_part(p));
  return roots;
}

// The trained parameters' sizes on this rank, in the optimizer's order: the model's (tables,
// layers, final norm, head). Of equal layers in a row at most so many.
std::vector<Bytes> StepWriter::stepped(std::int64_t most_layers) const {
  if (parallelism_ == DataParallelism::zero_redundancy) return partition_;
  std::vector<Bytes> out;
  const auto all = [&](const std::vector<Parameter>& parameters) {
    for (const Parameter& p : parameters)
      if (p.trainable) out.push_back(own_part(p));
  };
  all(ends_stepped(parts_, true));
  for (const LayerRun& run : parts_.runs)
    for (std::int64_t i = 0; i < std::min(run.count, most_layers); ++i)
      all(run.layer(i).parameters);
  all(ends_stepped(parts_, false));
  return out;
}

// _single_tensor_adam: denom = (exp_avg_sq.sqrt() / …).add_(eps). The square root and the quotient
// of one parameter live beside the previous parameter's `denom`, which keeps its name until then.
void StepWriter::for_loop_step(OpBuilder step) {
  Bytes most, previous;
  for (const Bytes own : stepped(2)) {
    most = std::max(most, previous + own * 2);
    previous = own;
  }
  step.scratch(most);
  if (!b_.keeps_blocks()) return;
  BlockEvents events;
  std::int32_t last = -1;
  for (const Bytes own : stepped(d_.layers)) {
    const auto root = events.take(own), denominator = events.take(own);
    events.drop(root);
    if (last >= 0) events.drop(last);
    last = denominator;
  }
  b_.blocks(std::move(events));
}

void StepWriter::optimizer_step() {
  b_.open(kNoGroup);
  const auto touch_gradients = [&](OpBuilder op, bool release) {
    const auto touch = [&](const Unit& unit) {
      const auto one = [&](TensorId t) { release ? op.release(t) : op.read(t); };
      one(unit.shard_grad);
      for (const TensorId grad : unit.adapter_grads) one(grad);
      // DDP's views: each was copied into its bucket as it became ready, and went.
      if (!fsdp() && !holds_in_buckets())
        for (const TensorId grad : unit.kept) one(grad);
    };
    touch(root_);
    touch(embedding_);
    for (const Run& run : runs_)
      for (const Unit& unit : run.units) touch(unit);
    touch(tail_);
  };
  const std::vector<TensorId> roots = square_roots();
  auto step = b_.op("optimizer.step", Phase::optimizer);
  for (const TensorId root : roots) step.write(root);
  if (models::rule_of(strategy_.optimizer).torch.makes(OptimizerImpl::for_loop, strategy_))
    for_loop_step(step);
  touch_gradients(step, false);
  auto zero_grad = b_.op("zero_grad", Phase::optimizer);
  zero_grad.release(end_.loss);
  touch_gradients(zero_grad, true);
  b_.close();
}

}  // namespace plimsoll::planner::pytorch
