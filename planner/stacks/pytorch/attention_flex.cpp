// flex_attention as Transformers calls it (integrations/flex_attention.py) and Inductor compiles it
// (torch 2.11, _inductor/kernel/flex/flex_attention.py).
//
// One Triton kernel makes the row statistics, fp32 [b, heads, s] twice, and the result, laid out as
// the queries are. Autograd keeps the operands, the blocks of the mask, the result and the
// logsumexp in base 2; the layer gets the natural one, which Transformers casts and the layer's
// frame holds. Nothing depends on what autotuning finds: each of its kernels asks for the same.
#include "planner/stacks/pytorch/attention.h"

namespace plimsoll::planner::pytorch {

namespace {
// Where the compiled code begins: operands cast as autocast has it, queries first.
struct Operand {
  TensorId& tensor;
  const char* name;
  SymInt values;
  DType have;
};
}  // namespace

void AttentionWriter::flex_forward(const AttentionNames& names, const AttentionInput& given,
                                   bool stops, AttentionSaved& s) {
  const DType dtype = kernel(given);
  const AttentionInput in = prepare(names, given);
  const SymInt rows = checked_multiply(tokens_.total(), d_.heads);
  const bool copies = copies_out(given);
  s.q = in.q, s.k = in.k, s.v = in.v;
  auto attention = op(names.out);
  const WorkOfOp work = b_.work();
  work.attends({false, dtype, fused_flops()});
  attention.read(in.q).read(in.k).read(in.v).read(model_mask());
  const std::array<Operand, 3> operands{{{s.q, names.q.cast, q_values(), in.dtype},
                                         {s.k, names.k.cast, read_values(), in.k_dtype},
                                         {s.v, names.v.cast, read_values(), in.v_dtype}}};
  for (const Operand& operand : operands) {
    if (operand.have == dtype) continue;
    operand.tensor = make(operand.name, operand.values, dtype);
    attention.write(operand.tensor);
    work.casts((bytes(operand.values, operand.have) + bytes(operand.values, dtype)).real());
  }
  s.lse = make(names.logsumexp, rows, DType::fp32);
  const TensorId natural = make(names.natural_lse, rows, DType::fp32);
  s.fused_out = make(copies ? names.product : names.out, q_values(), dtype);
  attention.write(s.lse).write(natural).write(s.fused_out);
  s.out = copies ? kNoTensor : s.fused_out;
  s.offset = natural;
  if (stops) return;
  const bool low = dtype != DType::fp32;
  if (low) s.offset = cast(names.low_lse, natural, rows, DType::fp32, dtype, Category::activations);
  if (copies) s.out = copy(names.out, s.fused_out, q_values(), dtype, Category::activations);
  if (!low) return;
  auto done = op(names.low_lse);
  done.release(natural);
  if (repeats() && copies_groups()) done.release(in.k).release(in.v);
  b_.work().moves(0, 0);
}

// The logsumexp that the layer returned has no gradient: autograd makes zeros of it, before it asks
// for what was saved. The result's is laid out as [b, heads, s, d] (AOTAutograd traces contiguous
// tangents). Row sums of both products; dQ, dV and dK, in the kernel's dtype, of the key heads that
// there are; then what autocast cast.
AttentionWriter::Grads AttentionWriter::flex_backward(const AttentionNames& names,
                                                      const AttentionInput& in,
                                                      const AttentionSaved& s, TensorId d_out,
                                                      std::span<const Ref> held) {
  const DType dtype = kernel(in);
  const SymInt rows = checked_multiply(tokens_.total(), d_.heads), k_values = read_values();
  const TensorId d_lse = temporary(names.grad_lse, rows, DType::fp32);
  op(names.grad_lse).write(d_lse);
  b_.work().moves(fp32(rows).real());
  unpack();
  const TensorId d = copy(names.grad_laid_out, d_out, q_values(), dtype);
  if (!held.empty()) {
    auto called = op(names.grad_laid_out);
    release(called, held);
    b_.work().moves(0, 0);
  }
  const TensorId sums = temporary(names.row_sums, rows, DType::fp32);
  op(names.row_sums).read(s.fused_out).read(d).read(d_lse).write(sums);
  b_.work().moves((bytes(q_values(), dtype) * 2 + fp32(rows) * 2).real());
  // Inductor stores dK as autocast wants it where keys are laid out as [b, heads, s, d], and not at
  // all where nobody wants it.
  const bool laid_out = in.k_heads_first || (repeats() && copies_groups()) || d_.kv_heads == 1;
  const DType k_dtype = laid_out ? in.k_dtype : dtype;
  Grads grads;
  grads[0] = temporary(names.q.grad_cast, q_values(), dtype);
  grads[2] = temporary(names.v.grad_cast, k_values, dtype);
  grads[1] = in.k_grad ? temporary(names.k.grad_cast, k_values, k_dtype) : kNoTensor;
  auto backward = op(names.out);
  backward.read(s.q).read(s.k).read(s.v).read(s.lse).read(model_mask()).read(sums).read(d);
  backward.write(grads[0]).write(grads[2]).write(grads[1]).read(d_out).read(d_lse);
  b_.work().attends({true, dtype, 2.5 * fused_flops()});
  const TensorId d_q = grads[0], d_k = grads[1], d_v = grads[2];
  const auto widen_k = [&] {
    grads[1] = in.k_grad ? cast(names.k.grad_wide, d_k, k_values, k_dtype, in.k_dtype) : kNoTensor;
  };
  // Inductor takes the order of the lower peak, else the keys' first.
  const bool fewer = grouped() && !repeats();
  if (!fewer) widen_k();
  grads[0] = in.q_grad ? cast(names.q.grad_rotated, d_q, q_values(), dtype, in.dtype) : kNoTensor;
  if (fewer) widen_k();
  grads[2] = in.v_grad ? cast(names.v.grad_wide, d_v, k_values, dtype, in.v_dtype) : kNoTensor;
  op(names.out).release(d_out).release(d_lse);
  b_.work().moves(0, 0);
  if (!repeats()) return grads;
  grads[2] = in.v_grad ? sum_groups(names.v, grads[2], in.v_dtype) : kNoTensor;
  grads[1] = in.k_grad ? sum_groups(names.k, grads[1], in.k_dtype) : kNoTensor;
  return grads;
}

}  // namespace plimsoll::planner::pytorch
