// FSDP2: gradients belong to their unit until it is reduced.
#include <algorithm>

#include "planner/stacks/pytorch/wrappers/fsdp2.h"

namespace plimsoll::planner::pytorch {

TensorId FullyShard::begin(const ModuleNames& names, std::int64_t elements, bool adapter) {
  const bool tied = d_.tied_head && is_head(names), sums = s_.micros > 1;
  if ((tied && s_.head_grad_is_view()) || (sums && !converts()))
    return whole_.begin(names, elements, adapter);
  if (sums && s_.first_micro())
    s_.unit->kept.push_back(b_.tensor(
        names.weight_grad_sum, storage(Count(elements), regime_.reduce), Category::gradients));
  const DType dtype = adapter ? regime_.adapter : regime_.weight;
  const TensorId grad =
      b_.tensor(names.weight_grad, storage(Count(elements), dtype), Category::gradients);
  s_.unit->grads.push_back(grad);
  const bool of_norm = layer_.in_stream_norm() || names.module == end_names().norm.module;
  if (d_.sequence_parts > 1 && of_norm) s_.unit->summed.push_back(grad);
  if (sums) s_.unit->order.push_back(model_order(names));
  if (is_last(names) || s_.unit->last_grad == kNoTensor)
    s_.unit->last_grad = sums ? s_.unit->kept[s_.unit->grads.size() - 1] : grad;
  if (tied) s_.end.tied_grad = grad;
  return grad;
}

void FullyShard::end(const ModuleNames& names, TensorId written) {
  if (s_.micros > 1 && !converts()) whole_.end(names, written);
}

bool FullyShard::is_last(const ModuleNames& names) {
  if (const std::optional<int> order = layer_.order_of(names)) {
    const bool last = *order > s_.unit->last_order;
    if (last) s_.unit->last_order = *order;
    return last;
  }
  const EndNames& ends = end_names();
  if (names.module == ends.embedding_norm.module) return s_.norm_unit != &s_.root;
  return d_.tied_head && (names.module == ends.norm.module ||
                          (s_.norm_unit == &s_.embedding && names.module == ends.tokens.module));
}

// Where a parameter stands in its unit, among those whose gradients are made in another order.
int FullyShard::model_order(const ModuleNames& names) const {
  if (const std::optional<int> in_layer = layer_.order_of(names)) return *in_layer;
  const EndNames& ends = end_names();
  const std::array<const char*, 8> order{
      ends.tokens.module,         ends.positions.module,       ends.token_types.module,
      ends.embedding_norm.module, ends.project_in.base.module, ends.head_transform.base.module,
      ends.norm.module,           ends.head.base.module};
  const auto at = std::find(order.begin(), order.end(), names.module);
  check(at != order.end(), ErrorKind::internal, [&] {
    return std::string("no place among a unit's parameters is known of ") + names.module;
  });
  return static_cast<int>(at - order.begin());
}

}  // namespace plimsoll::planner::pytorch
