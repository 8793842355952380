// fully_shard: what a unit allocates around its forward and backward.
//
// Source: torch 2.11, distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py;
// units as Accelerate 1.15 makes them (utils/fsdp_utils.py, fsdp2_prepare_model): every decoder
// layer, the embedding, and a tail of final norm and head that is not resharded after forward; a
// tied embedding belongs to the tail and is gathered at the start.
//
//   forward, unit u: local shards cast into one flat buffer (dead when the gather is launched),
//   all-gather output A(u); then A(u-1) is let go and the parameters P(u) are copied out; A(u) is
//   held until the next unit's copy-out, P(u) until the unit returns.
//   backward: A(u) was prefetched; P(u) is copied out, A(u) let go, A(u-1) prefetched. At the
//   unit's end P(u) goes first, then the previous unit's reduce-scatter input R(u+1), then R(u) is
//   made from the gradients, which die with that; the output shard is cast to the parameters'
//   dtype.
#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

using models::Access;
using models::Stream;

// The unit `step` (-1 or +1) away from layer `layer` of run `run`.
Ref StepWriter::unit_tensor(TensorId Unit::*tensor, std::size_t run, std::size_t layer,
                            int step) const {
  const Run& here = runs_[run];
  const std::size_t last = here.stride() - 1;
  if (step < 0 && layer > 0) return {here.units[layer - 1].*tensor};
  if (step > 0 && layer < last) return {here.units[layer + 1].*tensor};
  TensorId beyond = kNoTensor;
  if (step < 0)
    beyond = run == 0 ? embedding_.*tensor : runs_[run - 1].units.back().*tensor;
  else
    beyond = run + 1 == runs_.size() ? tail_.*tensor : runs_[run + 1].units.front().*tensor;
  return {step < 0 ? here.units[last].*tensor : here.units[0].*tensor, step, beyond};
}

void StepWriter::gather_forward(Unit& unit, Ref previous) {
  b_.op("fsdp.all_gather", Phase::forward)
      .write(unit.gather_forward)
      .scratch(unit.gathered == Bytes(0) ? Bytes(0) : unit.cast, Category::communication);
  b_.op("fsdp.free_all_gather", Phase::forward)
      .touch(previous.tensor, previous.delta, previous.beyond, Access::release);
  b_.op("fsdp.copy_out", Phase::forward).read(unit.gather_forward).write(unit.full_forward);
}

void StepWriter::reshard_after_forward(Unit& unit) {
  b_.op("fsdp.reshard", Phase::forward).release(unit.full_forward);
}

// With reshard_after_forward=False the parameters of the forward serve the backward.
void StepWriter::copy_out_backward(Unit& unit) {
  if (unit.full_backward == kNoTensor) return;
  b_.op("fsdp.copy_out", Phase::backward).read(unit.gather_backward).write(unit.full_backward);
}

void StepWriter::prefetch(const Unit& next, Ref target) {
  if (target.tensor == kNoTensor && target.beyond == kNoTensor) return;
  b_.op("fsdp.prefetch", Phase::backward)
      .touch(target.tensor, target.delta, target.beyond, Access::write)
      .scratch(next.gathered == Bytes(0) ? Bytes(0) : next.cast, Category::communication);
}

void StepWriter::post_backward(Unit& unit, Ref previous_reduce) {
  const bool last = micro_ + 1 == micros_;
  const bool converts = regime_.reduce != regime_.weight;
  if (micros_ > 1 && converts) {  // accumulate_unsharded_grad, to_accumulated_grad
    for (std::size_t i = 0; i < unit.grads.size(); ++i) {
      auto convert = b_.op("fsdp.accumulate_grad", Phase::backward).read(unit.grads[i]);
      if (micro_ == 0)
        convert.write(unit.kept[i]);
      else
        convert.update(unit.kept[i]);
    }
  }
  auto reshard = b_.op("fsdp.reshard", Phase::backward);
  reshard.release(unit.full_backward != kNoTensor ? unit.full_backward : unit.full_forward);
  if (!last || unit.reduce_in == kNoTensor) return;
  b_.op("fsdp.free_reduce_input", Phase::backward)
      .touch(previous_reduce.tensor, previous_reduce.delta, previous_reduce.beyond,
             Access::release);
  auto copy_in = b_.op("fsdp.copy_in", Phase::backward);
  copy_in.write(unit.reduce_in);
  for (const TensorId grad : micros_ > 1 ? unit.kept : unit.grads) copy_in.read(grad);
  if (unit.shard_grad_cast == Bytes(0)) {
    b_.op("fsdp.reduce_scatter", Phase::backward).read(unit.reduce_in).write(unit.shard_grad);
  } else {
    b_.op("fsdp.reduce_scatter", Phase::backward)
        .read(unit.reduce_in)
        .write(unit.shard_grad)
        .scratch(unit.reduce_output, Category::communication);
  }
}

}  // namespace plimsoll::planner::pytorch
