// bitsandbytes' LLM.int8() (0.50.2): Linear8bitLt.forward (nn/modules.py), MatMul8bitLt
// (autograd/_functions.py), int8_vectorwise_quant, int8_linear_matmul, int8_mm_dequant
// (backends/cuda/ops.py), int8_mixed_scaled_mm (backends/default/ops.py).
#include "planner/stacks/pytorch/modules.h"

namespace plimsoll::planner::pytorch {

namespace {

// Rates of GEMMs of 8-bit integers were not measured: as those in fp16, which may take twice as
// long.
Gemm int8_gemm(SymInt m, SymInt n, SymInt k) {
  return {DType::fp16, m.real(), n.real(), k.real()};
}

}  // namespace

// The input is cast to fp16 where it is not, and quantized by rows; columns with a value of 6 or
// more (llm_int8_threshold) are set apart, of which a plan assumes none. The GEMM in 32 bits
// becomes fp16 and then what the input was. MatMul8bitLt's frame holds the 8-bit input to its end.
void ModuleWriter::int8_forward(const LinearNames& names, const LinearPart& part, Ref input,
                                DType input_dtype, Category category, GemmSaved& s) {
  const SymInt t = tokens_.total(), ins = t * part.in, outs = t * part.out;
  s = {};
  Ref half = input;
  if (input_dtype != DType::fp16) {
    half = {temporary(names.half, ins, DType::fp16)};
    auto cast = op(names.half);
    read(cast, input).write(half.tensor);
    b_.work().compiled(0);
  }
  const TensorId scales = temporary(names.row_scales, t, DType::fp32),
                 values = temporary(names.quantized, ins, DType::int8),
                 magnitude = temporary(names.magnitude, ins, DType::fp16),
                 outliers = temporary(names.outliers, ins, DType::boolean);
  auto absolute = op(names.magnitude).write(scales).write(values).write(magnitude);
  read(absolute, half);
  op(names.outliers).read(magnitude).write(outliers);
  auto quantize = op(names.quantized).read(outliers).update(values);
  read(quantize, half);
  const TensorId gemm = temporary(names.accumulated, outs, DType::int32);
  op(names.base.module).read(values).write(gemm);
  b_.work().gemm(int8_gemm(t, part.out, part.in));
  TensorId low = kNoTensor;
  if (input_dtype != DType::fp16) {
    low = temporary(names.half_out, outs, DType::fp16);
    op(names.half_out).read(gemm).read(scales).write(low);
  }
  s.out = make(names.base.out, outs, input_dtype, category);
  auto last = op(names.base.out).read(low).read(gemm).read(scales).read(values).write(s.out);
  read(last, input);
}

// Where the input asks for a gradient: the weight anew in its dtype, times its rows' scales.
Sum ModuleWriter::int8_backward(const LinearNames& names, const LinearPart& part,
                                const PackedGradient& arrives) {
  const auto [input_dtype, input_grad, d_out, sum, at] = arrives;
  const SymInt t = tokens_.total(), weights = checked_multiply(part.in, part.out);
  const bool ends = !at.into.none();
  const TensorId weight = temporary(names.unpacked, weights, input_dtype),
                 scales = temporary(names.scales, part.out, DType::fp32);
  op(names.unpacked).write(weight);
  op(names.scales).write(scales);
  op(names.unpacked).update(weight).read(scales);
  const TensorId d_in =
      ends ? kNoTensor : temporary(names.base.input_grad_low, t * part.in, input_dtype);
  auto gemm = op(names.base.module).read(d_out).read(weight).write(d_in);
  b_.work().gemm(
      {input_dtype, t.real(), static_cast<double>(part.in), static_cast<double>(part.out)});
  if (ends) write(gemm, at.into);
  take_workspace(gemm, false);
  release(gemm, at.held);
  if (ends) return add_into(names.base, d_in, false, sum, at.into);
  return add_gradient(names.base.grad_layout, sum, {d_in, true}, input_dtype, t * part.in);
}

}  // namespace plimsoll::planner::pytorch
