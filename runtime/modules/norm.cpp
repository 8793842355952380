#include "runtime/modules/norm.h"

#include "models/decisions/workspace.h"

namespace plimsoll::runtime {

using models::NormKind;

// Forward -----------------------------------------------------------------------------------------

void Norm::forward(ConstTensorView x, TensorView y, TensorView statistics) {
  if (kind_ == NormKind::layer_norm)
    worker_.kernels.layer_norm_forward(x, parameters_.weight.value(), parameters_.bias.value(),
                                       eps_, y, statistics);
  else
    worker_.kernels.rms_norm_forward(x, parameters_.weight.value(), offset(), eps_, y, statistics);
}

Tensor Norm::forward(Operand x, const char* out, Tensor* statistics, bool keeps) {
  Op op(worker_, names_.norm);
  Tensor y = op.make(out, Category::activations, x.view.shape);
  const std::int64_t rows = x.view.elements() / parameters_.width;
  const std::int64_t columns = kind_ == NormKind::layer_norm ? 2 : 1;  // mean and 1 / std
  if (statistics != nullptr)
    *statistics = op.make(names_.statistics, Category::activations, models::decisions::kStatistics,
                          {rows, columns});
  forward(x.view, y.view(), statistics != nullptr ? statistics->view() : TensorView{});
  x.read_by(op);
  if (!keeps) op.consume(std::move(y));
  return y;
}

void Norm::forward_in_place(Tensor& x) {
  Op op(worker_, names_.norm);
  forward(x.view(), x.view(), {});
}

Tensor Norm::again(ConstTensorView x, ConstTensorView statistics) {
  Op op(worker_, names_.norm, Phase::recompute);
  Tensor y = op.make(names_.out, Category::temporaries, x.shape);
  if (kind_ == NormKind::layer_norm)
    worker_.kernels.layer_norm_again(x, statistics, parameters_.weight.value(),
                                     parameters_.bias.value(), y.view());
  else
    worker_.kernels.rms_norm_again(x, statistics, parameters_.weight.value(), offset(), y.view());
  return y;
}

// Backward ----------------------------------------------------------------------------------------

TensorView Norm::partial() {
  if (!trains()) return {};
  if (kind_ == NormKind::layer_norm)
    return worker_.scratch(DType::fp32, {2, models::decisions::kPartialRows, parameters_.width});
  return worker_.scratch(DType::fp32, {models::decisions::kPartialRows, parameters_.width});
}

void Norm::backward(ConstTensorView x, ConstTensorView statistics, ConstTensorView d_y,
                    bool accumulate, TensorView d_x) {
  if (kind_ == NormKind::layer_norm)
    worker_.kernels.layer_norm_backward(x, statistics, parameters_.weight.value(), d_y, accumulate,
                                        d_x, parameters_.weight.gradient(),
                                        parameters_.bias.gradient(), partial());
  else
    worker_.kernels.rms_norm_backward(x, statistics, parameters_.weight.value(), offset(), d_y,
                                      accumulate, d_x, parameters_.weight.gradient(), partial());
}

void Norm::backward(Operand x, Tensor statistics, Operand d_y, Tensor& d_x, bool input,
                    const char* name) {
  Op op(worker_, names_.norm, Phase::backward);
  const bool accumulate = static_cast<bool>(d_x);
  if (input && !accumulate) d_x = op.make(name, Category::temporaries, x.view.shape);
  backward(x.view, statistics.view(), d_y.view, accumulate, input ? d_x.view() : TensorView{});
  x.read_by(op);
  op.consume(std::move(statistics));
  d_y.read_by(op);
}

void Norm::backward_in_place(Operand x, Tensor statistics, Tensor& d, bool input) {
  Op op(worker_, names_.norm, Phase::backward);
  backward(x.view, statistics.view(), d.view(), false, input ? d.view() : TensorView{});
  x.read_by(op);
  op.consume(std::move(statistics));
  if (!input) op.consume(std::move(d));
}

Bytes Norm::workspace() const {
  if (!trains()) return {};
  const std::int64_t sums = kind_ == NormKind::layer_norm ? 2 : 1;  // of weight and bias
  return storage(Count(checked_multiply(sums * models::decisions::kPartialRows, parameters_.width)),
                 DType::fp32);
}

}  // namespace plimsoll::runtime
