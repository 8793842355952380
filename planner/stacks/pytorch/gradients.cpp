// Where the gradients of parameters go, and in which order a unit has them.
#include <algorithm>

#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

namespace {
// The head's weight, which an embedding may share.
bool is_head(const ModuleNames& names) {
  return names.module == end_names().head.base.module && names.leaf == Leaf::weight;
}
}  // namespace

// Plain and DDP: the first micro-batch's gradient stays until zero_grad, later ones are added to
// it. DDP with bucket views copies each gradient into the bucket and drops it, at the last
// micro-batch. FSDP2: they belong to the unit until it is reduced.
TensorId StepWriter::begin(const ModuleNames& names, std::int64_t elements, bool adapter) {
  const DType dtype = adapter ? regime_.adapter : regime_.weight;
  const Bytes bytes = storage(Count(elements), dtype);
  if (d_.tied_head && is_head(names) && head_grad_is_view())
    return end_.tied_grad = b_.tensor(names.weight_grad_new, bytes, Category::gradients);
  const bool converts = regime_.reduce != regime_.weight;
  if (fsdp() && micros_ > 1 && micro_ == 0 && converts)
    unit_->kept.push_back(b_.tensor(names.weight_grad_sum, storage(Count(elements), regime_.reduce),
                                    Category::gradients));
  TensorId grad = kNoTensor;
  if (fsdp() && (micros_ == 1 || converts)) {
    grad = b_.tensor(names.weight_grad, bytes, Category::gradients);
    if (micros_ > 1)
      note_gradient(names, grad);
    else
      unit_->grads.push_back(grad);
    if (is_last(names) || unit_->last_grad == kNoTensor)
      unit_->last_grad = micros_ > 1 ? unit_->kept.back() : grad;
  } else if (micro_ > 0 || to_bucket()) {
    grad = b_.tensor(names.weight_grad_new, bytes, Category::gradients);
  } else {
    grad = b_.tensor(names.weight_grad, bytes, Category::gradients);
    unit_->kept.push_back(grad);
  }
  if (d_.tied_head && is_head(names)) end_.tied_grad = grad;
  return grad;
}

// Does the parameter come after those of its unit whose gradients were made before its own?
bool StepWriter::is_last(const ModuleNames& names) {
  if (const std::optional<int> order = layer_.order_of(names)) {
    const bool last = *order > unit_->last_order;
    if (last) unit_->last_order = *order;
    return last;
  }
  const EndNames& ends = end_names();
  if (names.module == ends.embedding_norm.module) return norm_unit_ != &root_;
  return d_.tied_head && (names.module == ends.norm.module ||
                          (norm_unit_ == &embedding_ && names.module == ends.tokens.module));
}

bool StepWriter::holds_in_buckets() const {
  return strategy_.data.gradient_as_bucket_view && parallelism_ != DataParallelism::single;
}
bool StepWriter::to_bucket() const {
  return holds_in_buckets() && micros_ == 1;
}

void StepWriter::end(const ModuleNames& names, TensorId written) {
  if (fsdp() && (micros_ == 1 || regime_.reduce != regime_.weight)) return;
  if (d_.tied_head && is_head(names)) return;  // waits for the embedding's
  if (micro_ == 0) return;
  const TensorId sum = unit_->kept[unit_->next++];
  b_.op(names.weight_grad, Phase::backward).read(written).update(sum);
}

// Where a parameter stands in its unit, among those whose gradients are made in another order.
int StepWriter::model_order(const ModuleNames& names) const {
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

void StepWriter::note_gradient(const ModuleNames& names, TensorId grad) {
  unit_->grads.push_back(grad);
  unit_->order.push_back(model_order(names));
}

}  // namespace plimsoll::planner::pytorch
