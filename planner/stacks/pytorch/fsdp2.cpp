// fully_shard: what a unit allocates around its forward and backward.
//
// Source: torch 2.11, distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py;
// units as Accelerate 1.15 makes them (utils/fsdp_utils.py, fsdp2_prepare_model): every decoder
// layer, the embedding, and a tail of final norm and head that is not resharded after forward; a
// tied embedding belongs to that tail and is gathered at the start; what is left is the root's.
//
//   forward, unit u: local shards cast into one flat buffer (dead when the gather is launched),
//   all-gather output A(u); then the parameters P(u) are copied out, and A(u-1) is let go when that
//   is done (a local variable of wait_for_unshard holds it); A(u) is held until the next unit's
//   copy-out, P(u) until the unit returns.
//   backward: A(u) was prefetched; P(u) is copied out, A(u) let go, A(u-1) prefetched. At the
//   unit's end P(u) goes first, then the previous unit's reduce-scatter input R(u+1), then R(u) is
//   made from the gradients, which die with that; the output shard is cast to the parameters'
//   dtype. Units whose input takes no gradient are reduced when the backward ends.
#include <algorithm>

#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

using models::Access;

// torchtitan's apply_fsdp of 2024 left the last layer as it was gathered (parallelize_llama.py);
// that of 0.2.2 leaves the final norm and the head, as Accelerate does.
bool StepWriter::keeps_last_layer() const {
  const bool times = rules_.works != nullptr;  // one of the layers for all
  return fsdp() && !times && strategy_.code == models::ModelCode::torchtitan_2024_12;
}

// The last unit gathered before the layers, and the one that is next after them.
TensorId StepWriter::before_layers(TensorId Unit::*tensor) const {
  return embedding_.*tensor != kNoTensor ? embedding_.*tensor : root_.*tensor;
}
TensorId StepWriter::after_layers(TensorId Unit::*tensor) const {
  return tail_.*tensor;
}

// The unit `step` (-1 or +1) away from layer `layer` of run `run`.
Ref StepWriter::unit_tensor(TensorId Unit::*tensor, std::size_t run, std::size_t layer,
                            int step) const {
  const Run& here = runs_[run];
  const std::size_t last = here.stride() - 1;
  if (step < 0 && layer > 0) return {here.units[layer - 1].*tensor};
  if (step > 0 && layer < last) return {here.units[layer + 1].*tensor};
  TensorId beyond = kNoTensor;
  if (step < 0)
    beyond = run == 0 ? before_layers(tensor) : runs_[run - 1].units.back().*tensor;
  else
    beyond = run + 1 == runs_.size() ? after_layers(tensor) : runs_[run + 1].units.front().*tensor;
  return {step < 0 ? here.units[last].*tensor : here.units[0].*tensor, step, beyond};
}

void StepWriter::gather_forward(Unit& unit, Ref previous) {
  if (!fsdp() || unit.empty()) return;
  auto gather = b_.op("fsdp.all_gather", Phase::forward);
  gather.write(unit.cast_forward).write(unit.gather_forward);
  if (unit.cast_forward == kNoTensor && unit.gathered != Bytes(0))
    gather.scratch(unit.cast, Category::communication);
  b_.op("fsdp.copy_out", Phase::forward)
      .read(unit.gather_forward)
      .write(unit.full_forward)
      .touch(previous.tensor, previous.delta, previous.beyond, Access::release);
}

void StepWriter::reshard_after_forward(Unit& unit) {
  b_.op("fsdp.reshard", Phase::forward)
      .release(unit.full_forward)
      .release(unit.holds_shard ? unit.cast_forward : kNoTensor);
}

// With reshard_after_forward=False the parameters of the forward serve the backward.
void StepWriter::copy_out_backward(Unit& unit) {
  if (unit.full_backward == kNoTensor) return;
  b_.op("fsdp.copy_out", Phase::backward).read(unit.gather_backward).write(unit.full_backward);
}

void StepWriter::prefetch(Ref gathered, Ref cast) {
  if (gathered.none()) return;
  b_.op("fsdp.prefetch", Phase::backward)
      .touch(gathered.tensor, gathered.delta, gathered.beyond, Access::write)
      .touch(cast.tensor, cast.delta, cast.beyond, Access::write);
}

void StepWriter::prefetch_last_layer() {
  if (!fsdp()) return;
  const Unit& last = runs_.back().units.back();
  prefetch({last.gather_backward, -1}, {last.cast_backward, -1});
}

void StepWriter::prefetch_before(std::size_t run, std::size_t layer) {
  prefetch(unit_tensor(&Unit::gather_backward, run, layer, -1),
           unit_tensor(&Unit::cast_backward, run, layer, -1));
}

// Without a reduction gradients are kept in its dtype (to_accumulated_grad), one parameter after
// the other.
void StepWriter::convert_gradients(Unit& unit) {
  std::vector<std::size_t> by_order(unit.grads.size());
  for (std::size_t i = 0; i < by_order.size(); ++i) by_order[i] = i;
  std::sort(by_order.begin(), by_order.end(),
            [&](std::size_t a, std::size_t b) { return unit.order[a] < unit.order[b]; });
  for (const std::size_t i : by_order)
    b_.op("fsdp.accumulate_grad", Phase::backward).read(unit.grads[i]).write(unit.kept[i]);
}

// A first layer whose input takes no gradient is reduced when the backward ends, too.
void StepWriter::deferred_post_backward() {
  Run& run = runs_.front();
  if (!fsdp() || run.layers->input_grad || !run.layers->trains()) return;
  b_.open(run.group, true, times_);
  for (std::size_t j = run.stride(); j-- > 0;) {
    b_.at_layer(static_cast<std::uint16_t>(j));
    post_backward(run.units[j], unit_tensor(&Unit::reduce_in, 0, j, +1));
  }
  b_.close();
}

void StepWriter::post_backward(Unit& unit, Ref previous_reduce) {
  if (!fsdp() || unit.empty()) return;
  const bool last = micro_ + 1 == micros_;
  const bool converts = micros_ > 1 && regime_.reduce != regime_.weight;
  for (std::size_t i = 0; converts && micro_ > 0 && i < unit.grads.size(); ++i)
    b_.op("fsdp.accumulate_grad", Phase::backward).read(unit.grads[i]).update(unit.kept[i]);
  b_.op("fsdp.reshard", Phase::backward)
      .release(unit.full_backward != kNoTensor ? unit.full_backward : unit.full_forward);
  if (converts && micro_ == 0) convert_gradients(unit);
  if (!last || unit.reduce_in == kNoTensor) return;
  b_.op("fsdp.free_reduce_input", Phase::backward)
      .touch(previous_reduce.tensor, previous_reduce.delta, previous_reduce.beyond,
             Access::release);
  auto copy_in = b_.op("fsdp.copy_in", Phase::backward);
  copy_in.write(unit.reduce_in).scratch(unit.copy_table, Category::communication);
  for (const TensorId grad : micros_ > 1 ? unit.kept : unit.grads) copy_in.read(grad);
  // foreach_reduce's loop variable holds the last gradient until it returns.
  const Bytes output = unit.shard_grad_cast != Bytes(0) ? unit.reduce_output : Bytes(0);
  const bool apart = b_.keeps_blocks();  // it comes from the stream's own blocks
  const TensorId low =
      apart ? b_.tensor_in(unit.group, "fsdp.reduce_scatter_output", output,
                           Category::communication, models::Residency::step, models::Stream::reduce)
            : kNoTensor;
  TensorId made = unit.shard_grad;
  if (made == kNoTensor)
    made =
        b_.tensor_in(unit.group, "fsdp.sharded_grad",
                     unit.shard_grad_cast == Bytes(0) ? unit.reduce_output : unit.shard_grad_cast,
                     Category::gradients, models::Residency::step, models::Stream::reduce);
  auto reduce = b_.op("fsdp.reduce_scatter", Phase::backward);
  reduce.read(unit.reduce_in).read(unit.last_grad).write(low).write(made);
  if (!apart) reduce.scratch(output, Category::communication);
}

}  // namespace plimsoll::planner::pytorch
