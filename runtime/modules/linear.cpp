#include "runtime/modules/linear.h"

#include <algorithm>

#include "models/decisions/workspace.h"
#include "runtime/modules/sites.h"

namespace plimsoll::runtime {

namespace {

Bytes partial_sums(std::int64_t width) {
  return storage(Count(checked_multiply(models::decisions::kPartialRows, width)), DType::fp32);
}

}  // namespace

Bytes gemm_scratch(const Worker& worker) {
  return models::decisions::gemm_workspace(worker.device.kind(), worker.regime.compute);
}
TensorView gemm_panels(Worker& worker) {
  return worker.scratch(DType::fp32, {gemm_scratch(worker).value() / 4});
}

kernels::Dropout Linear::dropout() const {
  return dropout_at(worker_, parameters_.lora_dropout, stream_,
                    checked_multiply(worker_.length, parameters_.in));
}

ConstTensorView Linear::cast(const Parameter& parameter) {
  const ConstTensorView value = parameter.value();
  if (value.dtype == worker_.regime.compute) return value;
  const TensorView copy =
      worker_.scratch_after(gemm_scratch(worker_), worker_.regime.compute, value.shape);
  worker_.kernels.cast(value, copy);
  return copy;
}

ConstTensorView Linear::weight(Op& op, Tensor& made) {
  const kernels::PackedWeight packed = parameters_.weight.packed();
  if (!packed.codes) return parameters_.weight.value();
  const std::int64_t in = parameters_.in, out = parameters_.out;
  made = op.make(names_.dequantized, Category::temporaries,
                 parameters_.transposed ? Extents{in, out} : Extents{out, in});
  worker_.kernels.dequantize(packed, made.view());
  return made.view();
}

Tensor Linear::dropped(Operand x, Phase phase) {
  Op op(worker_, names_.adapter_dropout, phase);
  Tensor masked = op.make(names_.adapter_input, Category::temporaries, x.view.shape);
  worker_.kernels.dropout(x.view, dropout(), false, masked.view());
  x.read_by(op);
  return masked;
}

// Forward -----------------------------------------------------------------------------------------

Tensor Linear::forward(Operand x, const char* out, bool leaves, Tensor& saved) {
  const Extents shape{x.view.shape[0], parameters_.out};
  Tensor y;
  if (adapted()) {
    Tensor a = adapter(x.not_last());
    Op op(worker_, names_.adapter_b);
    y = op.make(out, Category::activations, shape);
    worker_.kernels.linear_forward(a.view(), cast(parameters_.lora_b), {},
                                   {.scale = parameters_.lora_scale}, y.view(),
                                   gemm_panels(worker_));
    if (leaves)
      saved = std::move(a);
    else
      op.consume(std::move(a));
  }
  Op op(worker_, names_.gemm);
  if (!adapted()) y = op.make(out, Category::activations, shape);
  Tensor made;
  worker_.kernels.linear_forward(x.view, weight(op, made), parameters_.bias.value(),
                                 {.transposed = parameters_.transposed, .accumulate = adapted()},
                                 y.view(), gemm_panels(worker_));
  op.consume(std::move(made));
  x.read_by(op);
  return y;
}

Tensor Linear::adapter(Operand x) {
  Tensor masked;
  if (drops()) {
    masked = dropped(x, worker_.phase);
    x = reading_last(masked);
  }
  Op op(worker_, names_.adapter_a);
  Tensor a = op.make(names_.adapter_a_out, Category::activations,
                     {x.view.shape[0], parameters_.lora_rank});
  worker_.kernels.linear_forward(x.view, cast(parameters_.lora_a), {}, {}, a.view(),
                                 gemm_panels(worker_));
  x.read_by(op);
  return a;
}

// Backward ----------------------------------------------------------------------------------------

Tensor Linear::backward_adapter(Operand d_y, Tensor a) {
  if (!adapted()) return {};
  Op op(worker_, names_.adapter_b, Phase::backward);
  Tensor d_a = op.make(names_.adapter_a_out_grad, Category::temporaries,
                       {d_y.view.shape[0], parameters_.lora_rank});
  worker_.kernels.linear_backward_input(d_y.view, cast(parameters_.lora_b),
                                        {.scale = parameters_.lora_scale}, d_a.view(),
                                        gemm_panels(worker_));
  worker_.kernels.linear_backward_weight(d_y.view, a.view(),
                                         {.accumulate = true, .scale = parameters_.lora_scale},
                                         parameters_.lora_b.gradient(), gemm_panels(worker_));
  d_y.read_by(op);
  op.consume(std::move(a));
  return d_a;
}

void Linear::backward_weight(Operand d_y, Operand x, Operand d_a) {
  if (trains_own()) {
    Op op(worker_, names_.weight_grad, Phase::backward);
    if (parameters_.weight.trains())
      worker_.kernels.linear_backward_weight(
          d_y.view, x.view, {.transposed = parameters_.transposed, .accumulate = true},
          parameters_.weight.gradient(), gemm_panels(worker_));
    if (parameters_.bias.trains()) backward_bias(d_y);
    d_y.read_by(op);
    if (parameters_.weight.trains() && !adapted()) x.read_by(op);
  }
  if (adapted()) backward_a(x, d_a);
}

void Linear::backward_bias(Operand d_y) {
  worker_.kernels.bias_backward(
      d_y.view, parameters_.bias.gradient(),
      worker_.scratch(DType::fp32, {models::decisions::kPartialRows, parameters_.out}));
}

void Linear::backward_a(Operand x, Operand d_a) {
  Tensor masked;
  if (drops()) {
    masked = dropped(x, Phase::backward);
    x = reading_last(masked);
  }
  Op op(worker_, names_.adapter_a, Phase::backward);
  worker_.kernels.linear_backward_weight(d_a.view, x.view, {.accumulate = true},
                                         parameters_.lora_a.gradient(), gemm_panels(worker_));
  x.read_by(op);
  d_a.read_by(op);
}

Tensor Linear::backward_parameters(Gradient& d_y, Operand x, Tensor a, bool input) {
  Tensor d_a = backward_adapter(d_y.read(!trains_own() && !input), std::move(a));
  backward_weight(d_y.read(!input), x, reading(d_a, !input));
  return d_a;
}

void Linear::backward_input(Operand d_y, Operand d_a, const char* name, Tensor& d_x) {
  const Extents shape{d_y.view.shape[0], parameters_.in};
  bool first = !d_x;
  if (adapted()) {
    Op op(worker_, names_.adapter_input_grad, Phase::backward);
    if (first) d_x = op.make(name, Category::temporaries, shape);
    backward_adapter_input(op, d_a, first, d_x);
    first = false;
  }
  Op op(worker_, names_.input_grad, Phase::backward);
  if (first) d_x = op.make(name, Category::temporaries, shape);
  Tensor made;
  worker_.kernels.linear_backward_input(
      d_y.view, weight(op, made), {.transposed = parameters_.transposed, .accumulate = !first},
      d_x.view(), gemm_panels(worker_));
  op.consume(std::move(made));
  d_y.read_by(op);
}

void Linear::backward_adapter_input(Op& op, Operand d_a, bool first, Tensor& d_x) {
  const ConstTensorView weight = cast(parameters_.lora_a);
  if (drops()) {
    Tensor part = op.make(names_.adapter_input_grad, Category::temporaries, d_x.view().shape);
    worker_.kernels.linear_backward_input(d_a.view, weight, {}, part.view(), gemm_panels(worker_));
    worker_.kernels.dropout(part.view(), dropout(), !first, d_x.view());
    op.consume(std::move(part));
  } else {
    worker_.kernels.linear_backward_input(d_a.view, weight, {.accumulate = !first}, d_x.view(),
                                          gemm_panels(worker_));
  }
  d_a.read_by(op);
}

Bytes Linear::workspace() const {
  Bytes most = gemm_scratch(worker_);
  if (adapted() && worker_.regime.adapters.weight != worker_.regime.compute)
    most += storage(
        Count(checked_multiply(parameters_.lora_rank, std::max(parameters_.in, parameters_.out))),
        worker_.regime.compute);
  return parameters_.bias.trains() ? std::max(most, partial_sums(parameters_.out)) : most;
}

}  // namespace plimsoll::runtime
