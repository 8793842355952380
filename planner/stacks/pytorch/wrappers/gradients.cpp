#include "planner/stacks/pytorch/wrappers/gradients.h"

namespace plimsoll::planner::pytorch {

bool is_head(const ModuleNames& names) {
  return names.module == end_names().head.base.module && names.leaf == Leaf::weight;
}

TensorId WholeGradients::begin(const ModuleNames& names, std::int64_t elements, bool adapter) {
  const DType dtype = adapter ? regime_.adapter : regime_.weight;
  const Bytes bytes = storage(Count(elements), dtype);
  const bool tied = d_.tied_head && is_head(names);
  if (tied && s_.head_grad_is_view())
    return s_.end.tied_grad = b_.tensor(names.weight_grad_new, bytes, Category::gradients);
  const bool stays = keeps(elements);
  const TensorId grad =
      b_.tensor(stays ? names.weight_grad : names.weight_grad_new, bytes, Category::gradients);
  if (stays) s_.unit->kept.push_back(grad);
  if (tied) s_.end.tied_grad = grad;
  return grad;
}

void WholeGradients::end(const ModuleNames& names, TensorId written) {
  if (d_.tied_head && is_head(names)) return;  // waits for the embedding's
  if (s_.first_micro() || goes_ == Goes::held) return;
  const TensorId sum = s_.unit->kept[s_.unit->next++];
  b_.op(names.weight_grad, Phase::backward).read(written).update(sum);
}

}  // namespace plimsoll::planner::pytorch
