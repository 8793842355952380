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

#include "planner/stacks/pytorch/wrappers/fsdp2.h"

namespace plimsoll::planner::pytorch {

using models::Access;

// torchtitan of 2024 left the last layer as it was gathered (parallelize_llama.py);
// that of 0.2.2 leaves the final norm and the head, as Accelerate does.
bool FullyShard::keeps_last_layer() const {
  const bool times = rules_.works != nullptr;  // one of the layers for all
  return !times && models::is_torchtitan_of_2024(strategy_.code);
}

std::vector<std::int64_t> FullyShard::held_by(std::int64_t rank) const {
  std::vector<std::int64_t> held;
  const auto all = [&](const Unit& unit) {
    if (unit.empty()) return;
    for (const Parameter& p : *unit.parameters)
      if (p.trainable) held.push_back(own_rows(p, rank).now());
  };
  all(s_.root);
  all(s_.embedding);
  for (const Run& run : s_.runs)
    for (std::size_t j = 0; j < run.plans.size(); ++j) all(run.units[j]);
  all(s_.tail);
  return held;
}

void FullyShard::declare_states() {
  declare_units([&](Unit& unit, std::int64_t copies) { declare_unit(unit, copies, true); });
}

void FullyShard::optimizer_step() {
  step_optimizer(
      lists_one_by_one(), [&](std::int64_t most) { return stepped_one_by_one(most); }, false);
}

void FullyShard::before_forward(Unit& unit, Ref previous) {
  if (unit.empty()) return;
  auto gather = b_.op("fsdp.all_gather", Phase::forward);
  gather.write(unit.cast_forward).write(unit.gather_forward);
  if (unit.cast_forward == kNoTensor && unit.gathered != Bytes(0))
    gather.scratch(unit.cast, Category::communication);
  gather.scratch(cast_scratch(unit), Category::communication);
  b_.op("fsdp.copy_out", Phase::forward)
      .read(unit.gather_forward)
      .write(unit.full_forward)
      .touch(previous.tensor, previous.delta, previous.beyond, Access::release);
}

// With reshard_after_forward=False the parameters of the forward serve the backward.
void FullyShard::before_backward(Unit& unit) {
  if (unit.full_backward == kNoTensor) return;
  b_.op("fsdp.copy_out", Phase::backward).read(unit.gather_backward).write(unit.full_backward);
}

void FullyShard::prefetch(Ref gathered, Ref cast) {
  if (gathered.none()) return;
  b_.op("fsdp.prefetch", Phase::backward)
      .touch(gathered.tensor, gathered.delta, gathered.beyond, Access::write)
      .touch(cast.tensor, cast.delta, cast.beyond, Access::write);
}

void FullyShard::gather_again(Unit& unit) {
  if (unit.full_backward == kNoTensor) return;
  prefetch({unit.gather_backward}, {unit.cast_backward});
}

void FullyShard::before_head_backward() {
  const Unit& last = s_.runs.back().units.back();
  prefetch({last.gather_backward, -1}, {last.cast_backward, -1});
}

void FullyShard::prefetch_before(std::size_t run, std::size_t layer) {
  prefetch(s_.unit_tensor(&Unit::gather_backward, run, layer, -1),
           s_.unit_tensor(&Unit::cast_backward, run, layer, -1));
}

void FullyShard::prefetch_in_checkpoint(Unit& unit) {
  prefetch({unit.gather_backward}, {unit.cast_backward});
}

// Without a reduction gradients are kept in its dtype (to_accumulated_grad), one parameter after
// the other.
void FullyShard::convert_gradients(Unit& unit) {
  std::vector<std::size_t> by_order(unit.grads.size());
  for (std::size_t i = 0; i < by_order.size(); ++i) by_order[i] = i;
  std::sort(by_order.begin(), by_order.end(),
            [&](std::size_t a, std::size_t b) { return unit.order[a] < unit.order[b]; });
  for (const std::size_t i : by_order)
    b_.op("fsdp.accumulate_grad", Phase::backward).read(unit.grads[i]).write(unit.kept[i]);
}

void FullyShard::after_backward(Unit& unit, Ref previous_reduce) {
  if (unit.empty()) return;
  const bool sums = s_.micros > 1 && converts();
  for (std::size_t i = 0; sums && s_.micro > 0 && i < unit.grads.size(); ++i)
    b_.op("fsdp.accumulate_grad", Phase::backward).read(unit.grads[i]).update(unit.kept[i]);
  sum_over_sequence(unit);
  b_.op("fsdp.reshard", Phase::backward)
      .release(unit.full_backward != kNoTensor ? unit.full_backward : unit.full_forward);
  if (sums && s_.first_micro()) convert_gradients(unit);
  if (!s_.last_micro() || unit.reduce_in == kNoTensor) return;
  b_.op("fsdp.free_reduce_input", Phase::backward)
      .touch(previous_reduce.tensor, previous_reduce.delta, previous_reduce.beyond,
             Access::release);
  reduce_scatter(unit);
}

// FSDPParam.unsharded_grad_data: a norm's gradient is of the rank's part of each sequence, and
// redistributed before it is reduced; in the order of the model, the last one that was made first.
void FullyShard::sum_over_sequence(Unit& unit) {
  for (auto grad = unit.summed.rbegin(); grad != unit.summed.rend(); ++grad) {
    const TensorId sum =
        b_.tensor_in(unit.group, "fsdp.sequence_grad", b_.bytes_of(*grad), Category::gradients);
    b_.op("fsdp.sequence_all_reduce", Phase::backward).read(*grad).write(sum);
    b_.work().moves(0, 0);
    std::ranges::replace(unit.grads, *grad, sum);
    if (unit.last_grad == *grad) unit.last_grad = sum;
  }
}

void FullyShard::reduce_scatter(Unit& unit) {
  auto copy_in = b_.op("fsdp.copy_in", Phase::backward);
  copy_in.write(unit.reduce_in).scratch(unit.copy_scratch, Category::communication);
  for (const TensorId grad : s_.micros > 1 ? unit.kept : unit.grads) copy_in.read(grad);
  // foreach_reduce's loop variable holds the last gradient until it returns.
  const SymBytes output = unit.shard_grad_cast != Bytes(0) ? unit.reduce_output : SymBytes();
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
  if (!apart) return (void)reduce.scratch(output, Category::communication);
  BlockEvents events;  // the gradient is cast from the output
  events.birth(low);
  events.birth(made);
  b_.blocks(std::move(events));
}

}  // namespace plimsoll::planner::pytorch
