// The step of an optimizer that projects (models/decisions/low_rank.h).
#include <algorithm>

#include "models/decisions/workspace.h"
#include "runtime/shard/unit.h"

namespace plimsoll::runtime::shard {

using comm::slice;
namespace decisions = models::decisions;

namespace {

Bytes gemm_workspace(const Worker& worker) {
  return decisions::gemm_workspace(worker.device.kind(), worker.regime.compute);
}

bool is_set(const Worker& worker, ConstTensorView flag) {
  std::int32_t value = 0;
  if (flag) worker.device.copy_out(&value, flag.data, storage(Count(1), flag.dtype));
  return value != 0;
}

}  // namespace

Bytes Unit::step_workspace() const {
  Bytes most;
  for (const Place& place : layout_.places)
    most = std::max(most, decisions::low_rank_workspace(
                              place.low_rank, layout_.part(place.part).dtypes.gradient,
                              gemm_workspace(worker_), worker_.device.kind()));
  return most;
}

void Unit::step_projected(const OptimizerStep& step) {
  // Nothing is known of a gradient that is not finite but that it is skipped.
  const bool makes_bases =
      (step.number - 1) % decisions::kProjectionGap == 0 && !is_set(worker_, step.overflow);
  for (const Place& place : layout_.places) {
    if (place.part != Part::trained) continue;
    if (place.low_rank.rank > 0) {
      if (makes_bases)
        make_basis(slice(gradients_.part(place.part), place.first, place.count).as(place.shape),
                   slice(projector_.part(place.part), place.first_basis, place.low_rank.basis())
                       .as({place.low_rank.rank, place.low_rank.lesser()}));
      step_matrix(step, place);
      continue;
    }
    OptimizerOperands operands;
    const auto of = [&](TensorView flat, std::int64_t first) {
      return flat ? slice(flat, first, place.count) : flat;
    };
    operands.weight = of(parameters_.part(place.part), place.first);
    operands.master = of(masters_.part(place.part), place.first);
    operands.first_moment = of(first_moment_.part(place.part), place.first_moment);
    operands.second_moment = of(second_moment_.part(place.part), place.first_moment);
    operands.gradient = of(gradients_.part(place.part), place.first);
    operands.first_element = first_element_ + place.first;
    take_step(worker_, worker_.kernels, step, operands);
  }
}

// Equal gradients give equal bases on equal machines; one rank's are everybody's wherever they run.
void Unit::make_basis(ConstTensorView gradient, TensorView basis) {
  const std::int64_t rank = basis.shape[0], k = basis.shape[1];
  const TensorView gram = worker_.scratch(decisions::kGram, {k, k});
  worker_.kernels.gram(gradient, gram);
  worker_.kernels.eigenvectors(
      gram, rank,
      worker_.scratch_after(
          storage(Count(k * k), decisions::kGram), DType::uint8,
          {decisions::eigenvector_scratch(worker_.device.kind(), k, rank).value()}));
  worker_.kernels.basis(gram, basis);
  if (group_.replicas->size() > 1) group_.replicas->broadcast(basis.as({rank * k}), 0);
}

void Unit::step_matrix(const OptimizerStep& step, const Place& place) {
  const decisions::LowRank& m = place.low_rank;
  const auto part = [&](FlatTensor& tensor) { return tensor.part(place.part); };
  const TensorView gradient = slice(part(gradients_), place.first, place.count).as(place.shape);
  const ConstTensorView basis =
      slice(part(projector_), place.first_basis, m.basis()).as({m.rank, m.lesser()});
  const Bytes gemm = gemm_workspace(worker_);
  const TensorView panels = worker_.scratch(DType::fp32, {gemm.value() / 4});
  const DType dtype = decisions::projected_dtype(gradient.dtype);
  const Extents shape = m.right() ? Extents{m.rows, m.rank} : Extents{m.rank, m.columns};
  const TensorView projected = worker_.scratch_after(gemm, dtype, shape);
  const TensorView update = worker_.scratch_after(
      gemm + storage(Count(decisions::aligned_elements(m.stepped(), dtype)), dtype), DType::fp32,
      shape);
  const kernels::KernelTable& kernels = worker_.kernels;
  if (m.right())
    kernels.linear_forward(gradient, basis, {}, {}, projected, panels);
  else
    kernels.linear_forward(basis, gradient, {}, {.transposed = true}, projected, panels);
  kernels.fill(0, update);
  OptimizerOperands inside;
  inside.weight = update;
  inside.first_moment = slice(part(first_moment_), place.first_moment, m.stepped());
  inside.second_moment = slice(part(second_moment_), place.first_moment, m.stepped());
  inside.gradient = projected;
  inside.first_element = first_element_ + place.first;
  OptimizerStep adamw = step;
  adamw.learning_rate = 1;
  take_step(worker_, kernels, adamw, inside);
  // The update is what a weight of 0 became, which has nothing to decay; back, in the gradient's
  // place and dtype.
  const TensorView rounded{projected.data, gradient.dtype, shape};
  kernels.cast(update, rounded);
  const kernels::LinearOptions back{.scale = -decisions::kProjectionScale};
  if (m.right())
    kernels.linear_backward_input(rounded, basis, back, gradient, panels);
  else
    kernels.linear_backward_weight(basis, rounded, back, gradient, panels);
  OptimizerOperands whole;
  whole.weight = slice(part(parameters_), place.first, place.count);
  if (part(masters_)) whole.master = slice(part(masters_), place.first, place.count);
  whole.gradient = gradient.as({place.count});
  whole.first_element = inside.first_element;
  OptimizerStep sgd = step;
  sgd.options.kind = models::Optimizer::sgd;
  sgd.factor = {};
  take_step(worker_, kernels, sgd, whole);
}

}  // namespace plimsoll::runtime::shard
