#include "planner/stacks/pytorch/wrappers/replicated.h"

#include <algorithm>

#include "models/decisions/mesh.h"
#include "models/optimizers.h"

namespace plimsoll::planner::pytorch {

Replicated::Replicated(Step& step)
    : TorchWrapper(step),
      reduces_(models::decisions::mesh_of(strategy_).communicates()),
      partitions_(reduces_ && strategy_.data.zero == 1),
      gradients_(step, reduces_ && strategy_.data.gradient_as_bucket_view
                           ? WholeGradients::Goes::to_views
                           : WholeGradients::Goes::nowhere) {}

void Replicated::declare_states() {
  declare_units([&](Unit& unit, std::int64_t copies) { declare_unit(unit, copies, !partitions_); });
  if (partitions_) declare_partition();
  if (reduces_) declare_buckets();
  if (strategy_.optimizer_in_backward) s_.states.gradients = Bytes(0);
}

// DDP sends buffers in one flat copy before a step's first forward.
void Replicated::before_forward(Unit& unit, Ref) {
  Bytes buffers = s_.id_buffers() + s_.shared_matrices() + packed_buffers();
  if (s_.parts.shared_a > 0) buffers += s_.frequencies();  // beside them
  if (reduces_ && &unit == &s_.root && s_.first_micro() && buffers > Bytes(0))
    b_.op("ddp.buffers", Phase::forward).scratch(buffers);
}

std::vector<std::int64_t> Replicated::held_by(std::int64_t rank) const {
  if (shares_.empty()) return {};
  return {shares_[static_cast<std::size_t>(rank)].value()};
}

TensorId Replicated::begin(const ModuleNames& names, std::int64_t elements, bool adapter) {
  const bool carries = last_of_instance_ && ++begun_in_layer_ == in_layer_;
  const TensorId gradient = carries ? carried_ : gradients_.begin(names, elements, adapter);
  if (!acts()) return gradient;
  models::SteppedTensor parameter{.elements = elements,
                                  .dtype = adapter ? regime_.adapter : regime_.weight};
  const LinearPart* const linear = linear_of(names);
  if (linear != nullptr && !adapter && names.leaf == Leaf::weight) {
    parameter.rows = linear->conv1d ? linear->in : linear->out;
    parameter.columns = linear->conv1d ? linear->out : linear->in;
    parameter.rank = models::rank_of(strategy_, parameter);
  } else if (models::rule_of(strategy_.optimizer).torch.behind) {
    say_extents(names, parameter);
  }
  begun_.push_back({gradient, parameter});
  return gradient;
}

// Whose weight it is; none: an embedding's, a norm's, the head's.
const LinearPart* Replicated::linear_of(const ModuleNames& names) const {
  if (names.module == end_names().project_in.base.module) return &parts_.project_in;
  if (names.module == end_names().head_transform.base.module) return &parts_.head_transform;
  return layer_.linear();
}

void Replicated::end(const ModuleNames& names, TensorId written) {
  gradients_.end(names, written);
  if (!acts()) return;
  if (d_.tied_head && is_head(names)) return;  // waits for the embedding's
  const auto begun = std::ranges::find(begun_, written, &Begun::gradient);
  const Begun arrived = *begun;
  begun_.erase(begun);
  if (!strategy_.optimizer_in_backward) return copy_to_host(arrived);
  if (models::rule_of(strategy_.optimizer).torch.behind)
    step_behind(arrived);
  else
    step_parameter({written}, arrived.parameter);
}

// What goes at once; the rest waits for the optimizer on the device.
void Replicated::copy_to_host(const Begun& arrived) {
  if (!gradients_.keeps(arrived.parameter.elements))
    b_.op("gradient.to_host", Phase::backward).release(arrived.gradient);
}

// Behind an optimizer in the backward nothing is left to step, and no gradient to let go.
void Replicated::optimizer_step() {
  if (strategy_.optimizer_in_backward) {
    b_.open(models::kNoGroup);
    b_.op("optimizer.step", Phase::optimizer);
    b_.op("zero_grad", Phase::optimizer).release(s_.end.loss);
    return b_.close();
  }
  // DDP's views: each gradient was copied into its bucket as it became ready, and went.
  const bool kept = gradients_.stay();
  if (!partitions_)
    return step_optimizer(
        lists_one_by_one(), [&](std::int64_t most) { return stepped_one_by_one(most); }, kept);
  std::vector<TensorId> lists;
  if (optimizer_.lists(models::SteppedTensor{}))
    for (const Bytes part : partition_blocks()) add_lists(models::kNoGroup, part, lists);
  const auto stepped = [&](std::int64_t) {
    std::vector<models::SteppedTensor> out;
    for (const Bytes part : partition_)
      out.push_back({.elements = part.value() / storage(Count(1), DType::fp32).value()});
    return out;
  };
  step_optimizer(lists, stepped, kept);
}

}  // namespace plimsoll::planner::pytorch
