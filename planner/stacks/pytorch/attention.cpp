// Attention in one kernel, forward and backward.
#include "planner/stacks/pytorch/attention.h"

#include "planner/kernels_of_op.h"

namespace plimsoll::planner::pytorch {

using models::Attention;

void AttentionWriter::attention_forward(const AttentionNames& names, const AttentionInput& in,
                                        AttentionSaved& s) {
  const bool saves = std::exchange(saves_, saves_ && !selective());
  run(names, in, false, s);
  saves_ = saves;
}

void AttentionWriter::run(const AttentionNames& names, const AttentionInput& in, bool stops,
                          AttentionSaved& s) {
  s = {};
  switch (path()) {
    case AttentionPath::flash:
    case AttentionPath::efficient:
      if (grouped() && !computes_sums()) return group_by_group(names, in, s);
      return fused_forward(names, in, stops, s);
    case AttentionPath::flex:
      return flex_forward(names, in, stops, s);
    case AttentionPath::math:
    case AttentionPath::eager:
      return stored_forward(names, in, stops, s);
  }
}

// Runs the forward again when a node first asks for what it saved.
class AttentionWriter::Again : public Recomputation {
 public:
  Again(AttentionWriter& writer, const AttentionNames& names, const AttentionInput& in)
      : writer_(writer), names_(names), in_(in) {}
  void recompute() override {
    writer_.phase_ = Phase::recompute;
    writer_.run(names_, in_, true, writer_.again_);
    writer_.phase_ = Phase::backward;
  }
  void node_done() override {}
  ~Again() override {
    if (writer_.unpacked_ == this) writer_.unpacked_ = nullptr;
  }

 private:
  AttentionWriter& writer_;
  const AttentionNames& names_;
  const AttentionInput& in_;
};

AttentionWriter::Grads AttentionWriter::attention_backward(const AttentionNames& names,
                                                           const AttentionInput& in,
                                                           const AttentionSaved& saved,
                                                           TensorId d_out,
                                                           std::span<const Ref> held) {
  Again again(*this, names, in);
  if (selective()) recomputation_ = &again;
  const AttentionSaved& s = selective() ? again_ : saved;
  switch (path()) {
    case AttentionPath::flash:
    case AttentionPath::efficient:
      return fused_backward(names, in, s, d_out, held);
    case AttentionPath::flex:
      return flex_backward(names, in, s, d_out, held);
    case AttentionPath::math:
    case AttentionPath::eager:
      return stored_backward(names, in, s, d_out, held);
  }
  return {};
}

// What Transformers does to the operands before it calls SDPA; it holds them until it returns.
// Rotated queries and keys, and values, have the strides of [b, s, heads, d].
AttentionInput AttentionWriter::prepare(const AttentionNames& names, AttentionInput in) {
  // The copies take their names.
  const auto let_go = [&](const char* name, TensorId first, TensorId second = kNoTensor) {
    op(name).release(first).release(second);
    b_.work().moves(0, 0);
  };
  const auto laid_out = [&](const OperandNames& name, TensorId t, SymInt n, DType dtype) {
    return copy(name.laid_out, t, n, dtype, Category::activations);
  };
  if (repeats() && copies_groups()) {
    const TensorId k = in.k, v = in.v;
    in.k = copy(names.k.repeated, k, repeated_values(), in.k_dtype, Category::activations);
    const bool one_by_one = d_.repeats_heads_first || xformers();
    if (one_by_one) let_go(names.k.repeated, k);
    in.v = copy(names.v.repeated, v, repeated_values(), in.v_dtype, Category::activations);
    if (d_.bare || xformers()) let_go(names.v.repeated, v, one_by_one ? kNoTensor : k);
  }
  if (!contiguous()) return in;
  in.q = laid_out(names.q, in.q, q_values(), in.dtype);
  if (repeats() && copies_groups()) return in;
  in.k = laid_out(names.k, in.k, read_values(), in.k_dtype);
  in.v = laid_out(names.v, in.v, read_values(), in.v_dtype);
  return in;
}

// Autocast casts q, k and v for SDPA, whose kernels save them. With a mask SDPA makes an additive
// one in the kernel's dtype, its rows padded to 8 values (not for cuDNN), in every layer.
// Returns what the mask in the kernel's dtype takes before its rows are padded to eights (pad_bias,
// aten/src/ATen/native/transformers/attention.cpp).
SymBytes AttentionWriter::fused_operands(const AttentionNames& names, const AttentionInput& in,
                                         OpBuilder attention, AttentionSaved& s) {
  const DType dtype = kernel(in);
  const SymInt k_values = read_values();
  s.q = in.q;
  s.k = in.k;
  s.v = in.v;
  attention.read(in.q).read(in.k).read(in.v);
  if (unpads()) return Bytes(0);
  const WorkOfOp work = b_.work();
  // Returns what is moved.
  const auto narrow = [&](TensorId& operand, const char* name, SymInt values, DType have) {
    if (dtype == have) return 0.0;
    operand = make(name, values, dtype);
    attention.write(operand);
    return (bytes(values, have) + bytes(values, dtype)).real();
  };
  const double v = narrow(s.v, names.v.cast, k_values, in.v_dtype);
  const double k = narrow(s.k, names.k.cast, k_values, in.k_dtype);
  const double both = k + narrow(s.q, names.q.cast, q_values(), in.dtype);
  for (const double moved : {v, both})
    if (moved > 0) work.casts(moved);
  if (!masked()) return Bytes(0);
  const SymInt padded = cudnn() ? tokens_.keys() : round_up(tokens_.keys(), 8);
  s.mask = make(names.mask, checked_multiply(tokens_.total(), padded), dtype);
  attention.read(model_mask()).write(s.mask);
  const SymBytes plain = bytes(checked_multiply(tokens_.total(), tokens_.keys()), dtype);
  work.moves(2 * plain.real());
  return padded == tokens_.keys() ? SymBytes() : plain;
}

void AttentionWriter::fused_forward(const AttentionNames& names, const AttentionInput& given,
                                    bool stops, AttentionSaved& s) {
  const DType dtype = kernel(given);
  AttentionInput in = prepare(names, given);
  const bool copies = copies_out(given);
  const char* const name = copies || unpads() ? names.product : names.out;
  if (varies()) varlen_operands(names, in, s);
  if (unpads()) in.q = s.q, in.k = s.k, in.v = s.v;
  auto attention = op(name);
  b_.work().attends({false, dtype, fused_flops()});
  const SymBytes plain_mask = fused_operands(names, in, attention, s);
  if (unpads())
    attention.read(s.starts);
  else
    attention.write(s.starts).write(s.longest);
  s.fused_out = make(name, real(q_values()), dtype);
  s.out = copies ? kNoTensor : s.fused_out;
  if (path() == AttentionPath::efficient) {  // rows of lse are padded to 32
    if (computes_sums())
      s.lse = make(names.logsumexp,
                   checked_multiply(tokens_.sequences * d_.heads, round_up(tokens_.length, 32)),
                   DType::fp32);
  } else {
    s.lse = make(names.logsumexp, checked_multiply(real(tokens_.total()), d_.heads), DType::fp32);
    if (strategy_.attention == Attention::flash_3)
      attention.scratch(fp32(hopper_schedule(hopper(given.soft_cap))));
    else
      s.seed = make(names.seed, cudnn() ? 1 : 2, DType::int64);  // flash_attn's rng_state has both
    if (!packaged()) s.offset = make(names.offset, 1, DType::int64);
    if (d_.attention_dropout > 0 && !packaged() && !cudnn())
      attention.scratch(bytes(2, DType::int64));
  }
  attention.write(s.fused_out).write(s.lse).write(s.seed).write(s.offset);
  forward_blocks(attention, plain_mask, dtype, s);
  if (path() == AttentionPath::flash) split_keys(attention, s);
  if (unpads()) s.out = pad(names, given, s);
  if (copies && !stops)
    s.out = copy(names.out, s.fused_out, q_values(), dtype, Category::activations);
  if (hooks_.any() && (given.q_grad || given.k_grad || given.v_grad)) save_fused(names, dtype, s);
}

// The kernel does not run: what it made in the forward is its result. What is around it does.
void AttentionWriter::attention_kept(const AttentionNames& names, const AttentionInput& given,
                                     const AttentionSaved& kept, AttentionSaved& s) {
  const AttentionInput in = prepare(names, given);
  s = kept;
  auto attention = op(names.product);
  attention.scratch(fused_operands(names, in, attention, s));
  b_.work().moves(0, 0);
  if (copies_out(given))
    s.out = copy(names.out, s.fused_out, q_values(), kernel(given), Category::activations);
}

double AttentionWriter::fused_flops() const {
  if (!b_.work().asked()) return 0;
  // Under a mask the kernel computes whole squares: only its own causal flag ends a row of keys
  // early (mem_eff_attention/kernel_forward.h, custom_mask_type). The package and flex_attention
  // know windows, and where samples end.
  const bool squares = masked();
  const SymInt of_sample = std::max<std::int64_t>(1, tokens_.total() / tokens_.samples);
  const bool skips = flexes() ? tokens_.rows == models::Rows::flattened : varies() && !unpads();
  return fused_attention_flops({.tokens = real(tokens_.total()),
                                .length = skips ? of_sample : tokens_.keys(),
                                .width = d_.q_width(),
                                .window = slides() && !squares ? d_.window : 0,
                                .causal = !d_.bidirectional && !squares});
}

AttentionWriter::Grads AttentionWriter::fused_backward(const AttentionNames& names,
                                                       const AttentionInput& in,
                                                       const AttentionSaved& s, TensorId d_out,
                                                       std::span<const Ref> held) {
  unpack();
  const DType dtype = kernel(in);
  const SymInt k_values = read_values();
  if (unpads()) d_out = unpadded_gradient(names, s, d_out);
  Grads d{temporary(names.q.grad_cast, real(q_values()), dtype),
          temporary(names.k.grad_cast, real(k_values), dtype),
          temporary(names.v.grad_cast, real(k_values), dtype)};
  hooks_.bring(s.node);
  auto backward = op(names.out);
  hooks_.attach(backward, s.node);
  backward.read(s.starts).read(s.longest).read(s.mask).read(d_out);
  for (const TensorId kept : {s.q, s.k, s.v, s.fused_out, s.lse})
    backward.read(hooks_.brought(s.node, kept));
  backward.read(s.seed).read(s.offset).write(d[0]).write(d[1]).write(d[2]);
  // Five products where the forward has two (FlashAttention-2, arXiv 2307.08691, algorithm 2).
  b_.work().attends({true, dtype, 2.5 * fused_flops()});
  release(backward, held);
  if (xformers())
    xformers_workspace(backward, dtype, d);
  else if (path() == AttentionPath::efficient)
    efficient_workspace(backward, dtype);
  else
    flash_workspace(backward, in, d);
  if (unpads()) pad_gradients(names, s, dtype, d);
  const TensorId d_q = d[0], d_k = d[1], d_v = d[2];
  const auto widen_q = [&] {
    d[0] = in.q_grad ? cast(names.q.grad_rotated, d_q, q_values(), dtype, in.dtype) : kNoTensor;
  };
  const auto widen_v = [&] {
    d[2] = in.v_grad ? cast(names.v.grad_wide, d_v, k_values, dtype, in.v_dtype) : kNoTensor;
  };
  // SDPA's autocast casts queries last, Transformers itself first.
  packaged() ? widen_v() : widen_q();
  d[1] = in.k_grad ? cast(names.k.grad_wide, d_k, k_values, dtype, in.k_dtype) : kNoTensor;
  packaged() ? widen_q() : widen_v();
  if (!repeats()) return d;
  d[2] = in.v_grad ? sum_groups(names.v, d[2], in.v_dtype) : kNoTensor;
  d[1] = in.k_grad ? sum_groups(names.k, d[1], in.k_dtype) : kNoTensor;
  return d;
}

// The gradient of repeated keys or values, summed over the query heads of each group; then that of
// repeat_kv's index [:, :, None, :, :].
TensorId AttentionWriter::sum_groups(const OperandNames& names, TensorId d, DType dtype) {
  const TensorId sum = copy(names.grad, d, kv_values(), dtype);
  return into_zeros(names.grad, sum, kv_values(), dtype, slices_of_groups());
}

}  // namespace plimsoll::planner::pytorch
