// optimizer.step() and zero_grad(set_to_none=True).
#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

using models::kNoGroup;
using models::OptimizerImpl;

// torch/optim/adamw.py (2.11): foreach makes one list sqrt(exp_avg_sq), a copy of every state of
// the group; for-loop makes sqrt and its quotient for one parameter at a time; fused makes nothing.
// SGD updates in place in all three.
Bytes StepWriter::optimizer_scratch() const {
  if (strategy_.optimizer != models::Optimizer::adamw) return Bytes(0);
  switch (strategy_.optimizer_impl.value_or(OptimizerImpl::foreach)) {
    case OptimizerImpl::foreach:
      return step_temporaries_;
    case OptimizerImpl::for_loop:
      return largest_parameter_ * 2;
    case OptimizerImpl::fused:
      return Bytes(0);
  }
  return Bytes(0);
}

void StepWriter::optimizer_step() {
  b_.open(kNoGroup);
  const auto touch_gradients = [&](OpBuilder op, bool release) {
    const auto touch = [&](const Unit& unit) {
      const auto one = [&](TensorId t) { release ? op.release(t) : op.read(t); };
      one(unit.shard_grad);
      if (parallelism_ != DataParallelism::fsdp2)
        for (const TensorId grad : unit.kept) one(grad);
    };
    touch(embedding_);
    for (const Run& run : runs_)
      for (const Unit& unit : run.units) touch(unit);
    touch(tail_);
  };
  auto step = b_.op("optimizer.step", Phase::optimizer);
  step.scratch(optimizer_scratch());
  touch_gradients(step, false);
  auto zero_grad = b_.op("zero_grad", Phase::optimizer);
  zero_grad.release(loss_);
  touch_gradients(zero_grad, true);
  b_.close();
}

}  // namespace plimsoll::planner::pytorch
