// optimizer.step() and zero_grad(set_to_none=True).
#include <algorithm>

#include "models/host_optimizer.h"
#include "models/optimizers.h"
#include "planner/stacks/pytorch/wrappers/torch_wrapper.h"

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
void TorchWrapper::add_lists(models::GroupId group, SymBytes bytes, std::vector<TensorId>& lists) {
  const models::OptimizerRule& rule = models::rule_of(strategy_.optimizer);
  const models::TorchOptimizer& torch = models::rule_of(rule.rest.value_or(rule.kind)).torch;
  for (std::int64_t i = 0; i < torch.lists; ++i)
    lists.push_back(b_.tensor_in(group, torch.temporary, bytes, Category::temporaries));
}

std::vector<TensorId> TorchWrapper::lists_one_by_one() {
  std::vector<TensorId> lists;
  if (strategy_.offload.params) return lists;  // steps on the host
  const auto add_one = [&](models::GroupId group, const Parameter& p) {
    const OwnPart own = own_part(p);
    if (p.trainable && optimizer_.lists(own)) add_lists(group, optimizer_.size_of(own), lists);
  };
  const auto add_unit = [&](models::GroupId group, const Unit& unit) {
    if (unit.empty()) return;
    if (rules_.each_parameter)
      for (const Parameter& p : *unit.parameters) add_one(group, p);
    else if (unit.listed > Bytes(0))
      add_lists(group, unit.listed, lists);
  };
  const auto add_layers = [&] {
    for (const Run& run : s_.runs)
      for (const Unit& unit : run.units) add_unit(run.group, unit);
  };
  if (!s_.embedding.empty() || !rules_.each_parameter) {
    add_unit(kNoGroup, s_.embedding);
    add_layers();
    add_unit(kNoGroup, s_.tail);
    add_unit(kNoGroup, s_.root);
    return lists;
  }
  for (const Parameter& p : ends_stepped(parts_, true)) add_one(kNoGroup, p);
  add_layers();
  for (const Parameter& p : ends_stepped(parts_, false)) add_one(kNoGroup, p);
  return lists;
}

// The model's order: tables, layers, final norm, head.
std::vector<models::SteppedTensor> TorchWrapper::stepped_one_by_one(
    std::int64_t most_layers) const {
  std::vector<models::SteppedTensor> out;
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

void TorchWrapper::step_parameter(Ref gradient, const models::SteppedTensor& parameter) {
  auto step = b_.op("optimizer.step", Phase::backward)
                  .touch(gradient.tensor, gradient.delta, gradient.beyond);
  optimizer_.read_own(step, parameter);
  const models::TorchOptimizer& rule = models::rule_for(strategy_.optimizer, parameter).torch;
  for (std::int64_t i = 0; optimizer_.lists(parameter) && i < rule.lists; ++i)
    step.write(b_.tensor(rule.temporary, storage(Count(parameter.elements), parameter.dtype),
                         Category::temporaries));
  optimizer_.say_work({parameter}, b_.work());
  if (!rule.one_by_one(strategy_)) return;
  step.scratch(optimizer_.step_one_by_one({parameter}, nullptr));
  if (!b_.keeps_blocks()) return;
  BlockEvents events;
  optimizer_.step_one_by_one({parameter}, &events, rule.behind ? gradient : Ref{});
  b_.blocks(std::move(events));
}

void TorchWrapper::step_optimizer(const std::vector<TensorId>& lists, const Stepped& stepped,
                                  bool gradients_are_kept) {
  b_.open(kNoGroup);
  const auto touch_gradients = [&](OpBuilder op, bool release) {
    const auto one = [&](TensorId t) { release ? op.release(t) : op.read(t); };
    each_unit([&](const Unit& unit) {
      one(unit.shard_grad);
      for (const TensorId grad : unit.adapter_grads) one(grad);
      if (gradients_are_kept)
        for (const TensorId grad : unit.kept) one(grad);
    });
  };
  const models::OptimizerRule& rule = models::rule_of(strategy_.optimizer);
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
  for (const TensorId one : lists) step.write(one);
  if (b_.work().asked() && !strategy_.offload.params && !models::has_host_optimizer(strategy_))
    optimizer_.say_work(stepped(d_.layers), b_.work());
  touch_gradients(step, false);
  auto zero_grad = b_.op("zero_grad", Phase::optimizer);
  zero_grad.release(s_.end.loss);
  touch_gradients(zero_grad, true);
  b_.close();
}

}  // namespace plimsoll::planner::pytorch
