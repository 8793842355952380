// LoRA adapters around a GEMM.
#include "planner/stacks/pytorch/adapter.h"
#include "planner/stacks/pytorch/dora.h"

namespace plimsoll::planner::pytorch {

// x as it is cast, and what dropout leaves of it.
std::pair<Ref, Ref> ModuleWriter::adapter_reads(const LinearNames& names, Ref input, SymInt values,
                                                DType have, DType asked, TensorId& mask) {
  Ref x = input;
  if (asked != have) {
    x = {make(names.a.input_fp32, values, asked)};
    auto cast = op(names.a.input_fp32);
    read(cast, input).write(x.tensor);
  }
  mask = kNoTensor;
  if (strategy_.lora->dropout == 0) return {x, x};
  mask = make(names.a.lora_mask, values, DType::boolean);
  const Ref dropped{make(names.dropped, values, asked)};
  auto drop = op(names.dropped);
  read(drop, x).write(mask).write(dropped.tensor);
  return {x, dropped};
}

// peft tuners/lora/layer.py (0.21), Linear.forward: result = base(x); x = x.to(lora_A.dtype);
// result = result + lora_B(lora_A(dropout(x))) * scaling; result.to(the base's dtype). Python holds
// x, cast or not, until it returns. Around a packed base (tuners/lora/bnb.py) x is cast only
// without autocast, and so is what B made, before the sum; Linear4bit clones the result. GPTQ's
// (tuners/lora/gptq.py) adds in place until the PEFT of Transformers 5 (0.13.2 was read).
void ModuleWriter::adapter_forward(const LinearNames& names, const LinearPart& part, Ref input,
                                   DType input_dtype, Category category, bool stops,
                                   LinearSaved& s) {
  const SymInt t = tokens_.total(), outs = t * part.out;
  const DType own = regime_.adapter, dtype = regime_.gemm_dtype(own);
  const DType result = result_dtype(part, regime_, input_dtype),
              asked = adapter_input(part, regime_, strategy_, input_dtype);
  const bool packed = casts_before_sum(part), joins = part.joined.parts > 0;
  if (packed && part.packed->gemm == models::PackedGemm::dequantizes &&
      !models::is_litgpt(strategy_.code))
    s.out = s.base.out = copy(names.cloned, s.base.out, outs, result, category);
  const auto [x, dropped] = adapter_reads(names, input, t * part.in, input_dtype, asked, s.mask);
  const auto hold_until = [&](OpBuilder last) {
    read(last, x).touch(input.tensor, input.delta, input.beyond);
    b_.work().moves(0, 0);
  };
  if (part.dora) {
    const DoraDtypes dtypes =
        dora_dtypes(part, regime_, strategy_, input_dtype, s.mask != kNoTensor);
    s.out =
        DoraWriter(*this, names, part, dtypes, s.input_grad).forward(dropped, category, stops, s);
    return hold_until(op(names.base.module));
  }
  gemm_forward(names.a, names.a, adapter_a(part, own), dropped, asked, Category::activations, false,
               s.a);
  if (joins)
    joined_forward(names, part, s);
  else
    gemm_forward(names.b, names.b_bias, adapter_b(part, own), {s.a.out}, dtype,
                 Category::temporaries, stops, s.b);
  if (stops) return hold_until(op(names.b.module).release(s.base.out));
  TensorId scaled = copy(names.scaled, joins ? s.padded : s.b.out, outs, dtype);
  // torchtune's LoRALinear (modules/peft/lora.py) gives A's result the name that this one takes.
  if (models::is_torchtune(strategy_.code)) {
    op(names.scaled).release(s.a.out);
    b_.work().moves(0, 0);
  }
  if (packed && !regime_.autocast) scaled = cast(names.scaled_cast, scaled, outs, dtype, result);
  if (is_gptq(part) && !has_new_peft(strategy_)) {
    op(names.sum).update(s.base.out).read(scaled);
    return hold_until(op(names.base.module));
  }
  const DType sum_dtype = packed ? result : promoted(result, dtype);
  const bool narrows = sum_dtype != result;
  TensorId sum = make(names.sum, outs, sum_dtype, narrows ? Category::temporaries : category);
  op(names.sum).read(s.base.out).read(scaled).write(sum);
  s.out = narrows ? copy(names.base.out, sum, outs, result, category) : sum;
  auto last = op(names.base.module);
  if (joins) last.read(s.b.out);
  hold_until(last);
}

// Backward of the above, the newest node first: the sum's cast, the addition (which casts the
// base's share back), scaling, B, A, dropout, the input's cast, and the base last. LitGPT's are in
// the model's dtype.
Sum ModuleWriter::adapter_backward(const LinearNames& names, const LinearPart& part,
                                   DType input_dtype, bool input_grad, const LinearSaved& s,
                                   TensorId d_out, Sum sum, const Place& at) {
  const SymInt t = tokens_.total();
  const SymInt ins = t * part.in, outs = t * part.out;
  const DType own = regime_.adapter, dtype = regime_.gemm_dtype(own);
  const DType result = result_dtype(part, regime_, input_dtype);
  const DType sum_dtype = casts_before_sum(part) ? result : promoted(result, dtype);
  const bool base = base_grad(part, input_grad);
  // Through nodes of its own (dropout, the cast) the input's gradient arrives as a fresh tensor.
  const DType asked = adapter_input(part, regime_, strategy_, input_dtype);
  const bool drops = strategy_.lora->dropout > 0, own_node = asked != input_dtype || drops;
  const Sum before = own_node ? Sum{} : sum;
  TensorId d, d_base;
  Sum d_x;
  if (part.dora) {
    const DoraDtypes dtypes = dora_dtypes(part, regime_, strategy_, input_dtype, drops);
    d = cast(names.sum_grad, d_out, outs, dtypes.out, dtypes.sum);
    d_base = base ? cast(names.base_grad, d, outs, dtypes.sum, result) : kNoTensor;
    d_x = DoraWriter(*this, names, part, dtypes, input_grad).backward(s, d, d_base, at, before);
  } else {
    d = cast(names.sum_grad, d_out, outs, result, sum_dtype);
    d_base = base ? cast(names.base_grad, d, outs, sum_dtype, result) : kNoTensor;
    d = copy(names.scaled_grad, cast(names.scaled_grad, d, outs, sum_dtype, dtype), outs, dtype);
    d = part.joined.parts > 0 ? joined_backward(names, part, s, d)
                              : gemm_backward(names.b, names.b_bias, adapter_b(part, own), dtype,
                                              true, s.b, d, {}, {})
                                    .tensor;
    d_x = gemm_backward(names.a, names.a, adapter_a(part, own), asked, input_grad, s.a, d, before,
                        {at.input, {}, base ? std::span<const Ref>() : at.held});
  }
  if (input_grad && own_node) {
    d = dropout_backward(names.dropped_grad, d_x.tensor, s.mask, ins, asked);
    d = cast(names.a_input_grad, d, ins, asked, input_dtype);
    sum = add_gradient(names.base.input_grad, sum, {d, false}, input_dtype, ins);
  } else if (input_grad) {
    sum = d_x;
  }
  if (!base) return sum;
  return base_backward(names, part, input_dtype, input_grad, s.base, d_base, sum, at);
}

}  // namespace plimsoll::planner::pytorch
