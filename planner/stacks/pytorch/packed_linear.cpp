// bitsandbytes' GEMM with a packed weight (0.50.2): Linear4bit.forward (nn/modules.py),
// MatMul4Bit (autograd/_functions.py), gemm_4bit (backends/cuda/ops.py); before 0.50 the forward
// unpacks as the backward does, by dequantize_4bit (functional.py), in the dtype that was loaded,
// whose scales are gone before the product; gemv_4bit reads a packed weight for one row that wants
// no gradient. GPTQ's, by the same steps:
// QuantLinearFunction (fms-acceleration @876e2ed, plugins/accelerated-peft,
// gptqmodel/nn_modules/triton_utils/dequant.py), which unpacks for any number of rows, and adds
// the bias as an op of its own. HQQ's (hqq 0.2.8, core/quantize.py, HQQMatmulNoCacheMul): the
// weight is unpacked, less its zeros, times its scales, three tensors for a moment; the function
// keeps its input, although its backward does not read it, and returns what the product makes.
#include "models/bitsandbytes.h"
#include "planner/stacks/pytorch/adapter.h"
#include "planner/stacks/pytorch/modules.h"

namespace plimsoll::planner::pytorch {

namespace {

// Kernels that read the packed weight itself take up to so many rows on any GPU
// (_GEMM_4BIT_CUSTOM_FLOOR_M). Between this and 1,536 a table of GPUs and shapes decides
// (_gemm_4bit_use_custom_cuda): planned as if the weight were unpacked, as it is above.
constexpr std::int64_t kRowsOfFusedKernel = 4;

}  // namespace

// What bitsandbytes' linears of 4 bits make of a packed weight, and what they did before 0.50.
class Linear4bitWriter {
 public:
  struct Operands {
    TensorId weight = kNoTensor, low_weight = kNoTensor, low_input = kNoTensor, bias = kNoTensor;
  };
  Linear4bitWriter(ModuleWriter& writer, const LinearNames& names, const LinearPart& part)
      : w_(writer), names_(names), part_(part) {}

  TensorId unpacked_weight();
  // `reads`: it computes in x's dtype, and autocast casts what F.linear is given.
  Operands older_operands(Ref input, DType input_dtype, bool reads);

 private:
  ModuleWriter& w_;
  const LinearNames& names_;
  const LinearPart& part_;
};

// dequantize_4bit adds the offset in place and makes the weight in the dtype it was loaded in.
TensorId Linear4bitWriter::unpacked_weight() {
  const SymInt weights = checked_multiply(part_.in, part_.out);
  const DType dtype = w_.regime_.unpacked;
  TensorId scales = kNoTensor;
  if (part_.packed->doubly_quantized()) {
    scales = w_.temporary(names_.scales, ceil_divide(weights, part_.packed->block), DType::fp32);
    w_.op(names_.scales).write(scales);
  }
  const TensorId weight = w_.temporary(names_.unpacked, weights, dtype);
  auto made = w_.op(names_.unpacked).read(scales).write(weight);
  w_.b_.work().moves(unpacked_bytes(part_, dtype));
  if (is_hqq(part_)) made.scratch(w_.bytes(weights, dtype) * 2);
  return weight;
}

// A bias is cast by Linear4bit, and held until the result is there; or by autocast, in its order:
// bias, weight, x.
Linear4bitWriter::Operands Linear4bitWriter::older_operands(Ref input, DType input_dtype,
                                                            bool reads) {
  Operands out;
  const DType dtype = w_.regime_.compute;
  const SymInt weights = checked_multiply(part_.in, part_.out);
  const auto cast_bias = [&] {
    if (!part_.bias || dtype == input_dtype) return;
    out.bias = w_.temporary(names_.bias.weight_cast, part_.out, dtype);
    w_.op(names_.bias.weight_cast).write(out.bias);
  };
  if (!reads) cast_bias();
  out.weight = w_.cast(names_.unpacked, unpacked_weight(), weights, w_.regime_.unpacked,
                       reads ? input_dtype : dtype);
  if (!reads) return out;
  cast_bias();
  out.low_weight = w_.cast(names_.base.weight_cast, out.weight, weights, input_dtype, dtype);
  out.low_input =
      w_.cast_input(names_, input, w_.tokens_.total() * part_.in, input_dtype, dtype).tensor;
  return out;
}

// x in the dtype that a packed linear computes in: by an op of its own where it has another.
Ref ModuleWriter::cast_input(const LinearNames& names, Ref input, SymInt values, DType have,
                             DType want) {
  if (have == want) return input;
  const Ref x{temporary(names.base.input_cast, values, want)};
  auto cast = op(names.base.input_cast);
  read(cast, input).write(x.tensor);
  b_.work().compiled(0);
  return x;
}

// x is cast to the dtype it computes in, and the result to x's; Python holds the cast until that is
// done. Autograd keeps nothing: the weight's gradient is never asked for.
void ModuleWriter::packed_forward(const LinearNames& names, const LinearPart& part, Ref input,
                                  DType input_dtype, Category category, GemmSaved& s) {
  const SymInt t = tokens_.total();
  const DType dtype = regime_.compute;
  const bool casts = dtype != input_dtype;
  s = {};
  const bool gptq = is_gptq(part), hqq = is_hqq(part), own = !gptq && !hqq;
  const bool reads = own && casts && models::computes_as_it_reads(strategy_);
  const Ref x = reads ? input : cast_input(names, input, t * part.in, input_dtype, dtype);
  std::array<TensorId, 2> scales{kNoTensor, kNoTensor};
  TensorId weight = kNoTensor;
  Linear4bitWriter writer(*this, names, part);
  Linear4bitWriter::Operands older;
  if (hqq && x.delta == 0) s.input = x.tensor;
  if (own && strategy_.bitsandbytes < models::kFuses4Bit) {
    older = writer.older_operands(input, input_dtype, reads);
    weight = older.weight;
  } else if (t > kRowsOfFusedKernel || gptq || hqq) {
    if (part.packed->doubly_quantized()) {
      const SymInt n = ceil_divide(checked_multiply(part.in, part.out), part.packed->block);
      scales = {temporary(names.scales, n, DType::fp32),
                temporary(names.shifted_scales, n, DType::fp32)};
      op(names.scales).write(scales[0]);
      op(names.shifted_scales).read(scales[0]).write(scales[1]);
    }
    weight = temporary(names.unpacked, checked_multiply(part.in, part.out), dtype);
    auto unpack = op(names.unpacked).read(scales[1]).write(weight);
    b_.work().moves(unpacked_bytes(part, dtype));
    if (hqq) unpack.scratch(bytes(checked_multiply(part.in, part.out), dtype) * 2);
  }
  const bool adds = gptq && part.bias, ends = (!casts || hqq) && !adds;
  const TensorId out = make(ends ? names.base.out : names.low, t * part.out, dtype,
                            ends ? category : Category::temporaries);
  auto gemm = op(names.base.module);
  read(gemm, x).read(scales[0]).read(scales[1]).read(weight).write(out);
  gemm.read(older.low_weight).read(older.low_input).read(older.bias);
  b_.work().gemm({dtype, t.real(), static_cast<double>(part.out), static_cast<double>(part.in)});
  take_workspace(gemm, part.bias && !gptq && !hqq);
  s.out = out;
  if (hqq) {
    auto last = op(names.base.out).read(out);
    read(last, input);
    const double added = bytes(t * part.out, dtype).real();  // out += bias
    b_.work().moves(part.bias ? 2 * added + bytes(part.out, dtype).real() : 0, part.bias ? 1 : 0);
    return;
  }
  if (adds) s.out = copy(names.base.out, out, t * part.out, dtype, category);
  if (!casts) return;
  s.out = make(names.base.out, t * part.out, input_dtype, category);
  auto widen = op(names.base.out).read(out).read(reads ? kNoTensor : older.bias).write(s.out);
  read(widen, x);
  release(widen, std::span(&input, 1));  // torch.nn.Module's call holds its arguments
}

Sum ModuleWriter::packed_backward(const LinearNames& names, const LinearPart& part,
                                  const PackedGradient& arrives) {
  const auto [input_dtype, input_grad, d_out, sum, at] = arrives;
  if (!input_grad) {
    if (!at.held.empty()) {
      auto done = op(names.base.module);
      release(done, at.held);
      b_.work().moves(0, 0);
    }
    return sum;
  }
  if (part.packed->gemm == models::PackedGemm::int8) return int8_backward(names, part, arrives);
  const bool hqq = is_hqq(part);
  if (is_gptq(part) || hqq) unpack();
  const SymInt t = tokens_.total(), weights = checked_multiply(part.in, part.out);
  const DType dtype = regime_.compute;
  const bool casts = dtype != input_dtype, ends = !at.into.none();
  const TensorId d = hqq ? d_out : cast(names.low_grad, d_out, t * part.out, input_dtype, dtype);
  const TensorId weight =
      cast(names.base.weight_cast, Linear4bitWriter(*this, names, part).unpacked_weight(), weights,
           regime_.unpacked, dtype);
  const TensorId d_in =
      casts || !ends ? temporary(names.base.input_grad_low, t * part.in, dtype) : kNoTensor;
  auto gemm = op(names.base.module).read(d).read(weight).write(d_in);
  b_.work().gemm({dtype, t.real(), static_cast<double>(part.in), static_cast<double>(part.out)});
  if (ends && !casts) write(gemm, at.into);
  take_workspace(gemm, false);
  if (hqq) read(gemm, at.input);
  release(gemm, at.held);
  // The engine casts what the function returned, and holds what it was given until then
  // (engine.cpp, validate_outputs in call_function).
  const bool reads = casts && !is_gptq(part) && !hqq && models::computes_as_it_reads(strategy_);
  const auto let_go = [&] {
    if (!reads) return;
    op(names.base.input_grad).read(d);
    b_.work().moves(0, 0);
  };
  if (ends) {
    const Sum none = add_into(names.base, d_in, casts, sum, at.into);
    let_go();
    return none;
  }
  const TensorId d_x = cast(names.base.input_grad, d_in, t * part.in, dtype, input_dtype);
  let_go();
  return add_gradient(names.base.grad_layout, sum, {d_x, !casts}, input_dtype, t * part.in);
}

}  // namespace plimsoll::planner::pytorch
