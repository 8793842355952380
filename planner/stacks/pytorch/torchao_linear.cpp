// torchao's GEMM with 8-bit weights (0.18, quantization/quantize_/workflows/int8/int8_tensor.py,
// what Int8Tensor does for torch.nn.functional.linear): operations of PyTorch under autograd, so
// that mm keeps the copy of the weight, and the product the scales, until their backward.
#include "planner/stacks/pytorch/adapter.h"
#include "planner/stacks/pytorch/adapter_names.h"
#include "planner/stacks/pytorch/modules.h"

namespace plimsoll::planner::pytorch {

// qdata.t().to(x.dtype), which autocast casts once more where x is not what it computes in; mm; the
// product with the rows' scales; the cast to x's dtype. Python holds mm's result, and what is cast,
// to the end. A recomputation ends with what the product keeps.
void ModuleWriter::torchao_forward(const LinearNames& names, const LinearPart& part, Ref input,
                                   DType input_dtype, Category category, bool stops, GemmSaved& s) {
  const TorchaoNames& own = torchao_names(names.base.module);
  const SymInt t = tokens_.total(), weights = checked_multiply(part.in, part.out);
  const DType dtype = regime_.autocast ? regime_.compute : input_dtype;
  const bool casts = dtype != input_dtype;
  s = {};
  const TensorId copied =
      temporary(casts ? names.unpacked : names.base.weight_cast, weights, input_dtype);
  op(names.unpacked).write(copied);
  b_.work().moves(unpacked_bytes(part, input_dtype));
  s.weight_cast = copied;
  const Ref x = cast_input(names, input, t * part.in, input_dtype, dtype);
  if (casts) s.weight_cast = copy(names.base.weight_cast, copied, weights, dtype);
  const TensorId product = temporary(own.unscaled, t * part.out, dtype);
  auto gemm = op(names.base.module);
  read(gemm, x).read(copied).read(s.weight_cast).write(product);
  b_.work().gemm(gemm_of(dtype, t, part.out, part.in));
  take_workspace(gemm, false);
  if (dtype != DType::fp32) {
    s.bias_cast = temporary(names.scales, part.out, dtype);
    op(names.scales).write(s.bias_cast);
  }
  if (stops) return void(op(names.base.out).read(product).read(s.bias_cast));
  const TensorId scaled = make(casts ? own.scaled : names.base.out, t * part.out, dtype,
                               casts ? Category::temporaries : category);
  op(own.scaled).read(product).read(s.bias_cast).write(scaled);
  s.out = casts ? make(names.base.out, t * part.out, input_dtype, category) : scaled;
  auto last = op(names.base.out).read(product).read(scaled);
  if (casts) last.write(s.out);
  read(last, input);  // torch.nn.Module's call holds its arguments
}

// Where the input asks for a gradient.
Sum ModuleWriter::torchao_backward(const LinearNames& names, const LinearPart& part,
                                   const PackedGradient& arrives, const GemmSaved& s) {
  const auto [input_dtype, input_grad, d_out, sum, at] = arrives;
  const TorchaoNames& own = torchao_names(names.base.module);
  const SymInt t = tokens_.total(), ins = t * part.in, outs = t * part.out;
  const DType dtype = regime_.autocast ? regime_.compute : input_dtype;
  const bool casts = dtype != input_dtype, ends = !at.into.none();
  TensorId d = cast(names.low_grad, d_out, outs, input_dtype, dtype);
  // `y += bias` changes a view: AsStridedBackward writes zeros of what it is a view of, and
  // CopySlices copies that, a part of which it copies once more.
  if (part.bias) {
    const TensorId viewed = copy(own.viewed_grad, d, outs, dtype);
    d = temporary(own.sum_grad, outs, dtype);
    op(own.sum_grad).read(viewed).write(d).scratch(bytes(outs, dtype));
    b_.work().moves(4 * bytes(outs, dtype).real());
  }
  unpack();
  const TensorId unscaled = temporary(own.unscaled_grad, outs, dtype);
  op(own.unscaled_grad).read(d).read(s.bias_cast).write(unscaled);
  const TensorId d_in =
      casts || !ends ? temporary(names.base.input_grad_low, ins, dtype) : kNoTensor;
  auto gemm = op(names.base.module).read(unscaled).read(s.weight_cast).write(d_in);
  b_.work().gemm(gemm_of(dtype, t, part.in, part.out));
  if (ends && !casts) write(gemm, at.into);
  take_workspace(gemm, false);
  release(gemm, at.held);
  if (ends) return add_into(names.base, d_in, casts, sum, at.into);
  const TensorId d_x = cast(names.base.input_grad, d_in, ins, dtype, input_dtype);
  return add_gradient(names.base.grad_layout, sum, {d_x, !casts}, input_dtype, ins);
}

}  // namespace plimsoll::planner::pytorch
