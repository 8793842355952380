// optimizer.step() and zero_grad(set_to_none=True).
#include <algorithm>

#include "models/optimizers.h"
#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

using models::kNoGroup;

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
// the rank steps; for-loop steps one parameter after another; fused makes nothing. SGD updates in
// place in all three.
std::vector<TensorId> StepWriter::lists() {
  std::vector<TensorId> lists;
  if (strategy_.offload.params) return lists;  // steps on the host
  const models::OptimizerRule& rule = models::rule_of(strategy_.optimizer);
  const char* const name = models::rule_of(rule.rest.value_or(rule.kind)).torch.temporary;
  const auto add = [&](models::GroupId group, Bytes bytes) {
    lists.push_back(b_.tensor_in(group, name, bytes, Category::temporaries));
  };
  const auto add_one = [&](models::GroupId group, const Parameter& p) {
    const models::SteppedTensor own = own_part(p);
    if (p.trainable && optimizer_.lists(own)) add(group, optimizer_.size_of(own));
  };
  if (parallelism_ == DataParallelism::zero_redundancy) {
    if (optimizer_.lists({}))
      for (const Bytes part : partition_blocks()) add(kNoGroup, part);
    return lists;
  }
  const auto add_unit = [&](models::GroupId group, const Unit& unit) {
    if (unit.empty()) return;
    if (rules_.each_parameter)
      for (const Parameter& p : *unit.parameters) add_one(group, p);
    else if (unit.listed > Bytes(0))
      add(group, unit.listed);
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
    return lists;
  }
  for (const Parameter& p : ends_stepped(parts_, true)) add_one(kNoGroup, p);
  add_layers();
  for (const Parameter& p : ends_stepped(parts_, false)) add_one(kNoGroup, p);
  return lists;
}

// The trained parameters on this rank, in the optimizer's order: the model's (tables, layers, final
// norm, head). Of equal layers in a row at most so many.
std::vector<models::SteppedTensor> StepWriter::stepped(std::int64_t most_layers) const {
  std::vector<models::SteppedTensor> out;
  if (parallelism_ == DataParallelism::zero_redundancy) {
    for (const Bytes part : partition_)
      out.push_back({.elements = part.value() / storage(Count(1), DType::fp32).value()});
    return out;
  }
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
  const models::OptimizerRule& rule = models::rule_of(strategy_.optimizer);
  const std::vector<TensorId> made = lists();
  const auto one_by_one = [&](OpBuilder step) {
    if (!rule.torch.one_by_one(strategy_) || strategy_.offload.params) return;
    // Equal layers: what one leaves to the next is the same from the second on.
    step.scratch(optimizer_.step_one_by_one(stepped(2), nullptr));
    if (!b_.keeps_blocks()) return;
    BlockEvents events;
    optimizer_.step_one_by_one(stepped(d_.layers), &events);
    b_.blocks(std::move(events));
  };
  if (rule.rest) one_by_one(b_.op("optimizer.step", Phase::optimizer));
  auto step = b_.op(rule.rest ? "optimizer.step.rest" : "optimizer.step", Phase::optimizer);
  if (!rule.rest) one_by_one(step);
  for (const TensorId one : made) step.write(one);
  touch_gradients(step, false);
  auto zero_grad = b_.op("zero_grad", Phase::optimizer);
  zero_grad.release(end_.loss);
  touch_gradients(zero_grad, true);
  b_.close();
}

}  // namespace plimsoll::planner::pytorch
