// Attention that stores its scores: Transformers' eager code and SDPA's math backend, kernel by
// kernel.
#include "planner/stacks/pytorch/attention.h"

namespace plimsoll::planner::pytorch {

// transformers eager_attention_forward (models/llama, models/gpt2): repeat keys and values over the
// query heads of their group; matmul(q, kᵀ) · scaling; + mask (in the stream's dtype, so autocast's
// scores are promoted); softmax; dropout; matmul with v; transposed and laid out anew. Saved: q and
// k as the product read them, the softmax, the probabilities and v as the second product read
// them. Python holds the repeated keys and values until it returns.
void AttentionWriter::eager_forward(const AttentionNames& names, const AttentionInput& in,
                                    bool stops, AttentionSaved& s) {
  const DType dtype = kernel(in), value = regime_.compute;
  const std::int64_t n = q_values();
  TensorId k = in.k, v = in.v;
  if (copies_groups()) {
    k = copy(names.k.repeated, k, n, in.dtype, Category::activations);
    v = copy(names.v.repeated, v, n, value, Category::activations);
  }
  const TensorId k_cast = cast(names.k.cast, k, n, in.dtype, dtype, Category::activations);
  s.k = k_cast;
  const TensorId q = cast(names.q.cast, in.q, n, in.dtype, dtype, Category::activations);
  s.q = lays_out(in) ? copy(names.q.laid_out, q, n, dtype, Category::activations) : q;
  if (lays_out(in) && !copies_groups())
    s.k = copy(names.k.laid_out, s.k, n, dtype, Category::activations);
  TensorId scaled = kNoTensor;
  if (in.alibi) {
    scaled = biased_scores(names, in, s);
  } else {
    const TensorId scores = temporary(names.scores, this->scores(), dtype);
    op(names.scores).read(s.q).read(s.k).read(q).read(k_cast).write(scores);
    b_.work().gemm(of_scores(dtype));
    b_.fuses(true);
    scaled = soft_cap(names, in, copy(names.scaled, scores, this->scores(), dtype), s);
  }
  const DType masked_dtype = softmax_dtypes(in).masked;
  TensorId masked = scaled;
  if (needs_mask()) {
    masked = temporary(names.masked, this->scores(), masked_dtype);
    op(names.masked).read(scaled).read(model_mask()).write(masked);
  }
  if (in.alibi) s.masked = masked;
  const TensorId probabilities = eager_softmax(names, in, masked, masked_dtype, s);
  b_.fuses(false);
  s.v = lays_out() && !copies_groups() && !in.v_heads_first
            ? copy(names.v.laid_out, v, n, value, Category::activations)
            : v;
  if (!stops) {
    const TensorId product = temporary(names.product, n, value);
    op(names.product).read(probabilities).read(s.v).write(product);
    b_.work().gemm(of_rows(value));
    s.out = copy(names.out, product, n, value, Category::activations);
  }
  op(names.module).release(k).release(v);
}

// q · kᵀ of every head; and of the scores' rows with one of the operands.
Gemm AttentionWriter::of_scores(DType dtype) const {
  const double s = static_cast<double>(tokens_.length);
  return {dtype, s, s, static_cast<double>(d_.head_dim),
          static_cast<double>(tokens_.sequences * d_.heads)};
}
Gemm AttentionWriter::of_rows(DType dtype) const {
  const double s = static_cast<double>(tokens_.length);
  return {dtype, s, static_cast<double>(d_.head_dim), s,
          static_cast<double>(tokens_.sequences * d_.heads)};
}

// Gemma 2: scores / cap, tanh, · cap. Saved is tanh's result.
TensorId AttentionWriter::soft_cap(const AttentionNames& names, const AttentionInput& in,
                                   TensorId scores, AttentionSaved& s) {
  if (!in.soft_cap) return scores;
  const std::int64_t n = this->scores();
  const DType dtype = kernel(in);
  const TensorId divided = copy(names.divided, scores, n, dtype);
  s.tanh = copy(names.tanh, divided, n, dtype, Category::activations);
  return copy(names.capped, s.tanh, n, dtype);
}

// BLOOM: alibi.baddbmm(q, kᵀ, beta=1, alpha=1/√d); autocast casts the biases in every layer.
TensorId AttentionWriter::biased_scores(const AttentionNames& names, const AttentionInput& in,
                                        AttentionSaved& s) {
  const DType dtype = kernel(in);
  const std::int64_t biases = checked_multiply(tokens_.total(), d_.heads);
  const TensorId alibi = cast(names.alibi, alibi_, biases, regime_.residual, dtype);
  s.scores = temporary(names.scores, scores(), dtype);
  op(names.scores).read(s.q).read(s.k).read(alibi).write(s.scores);
  b_.work().gemm(of_scores(dtype));
  b_.fuses(true);
  return s.scores;
}

// baddbmm_backward: each product, times alpha.
AttentionWriter::Grads AttentionWriter::biased_scores_backward(const AttentionNames& names,
                                                               const AttentionInput& in,
                                                               const AttentionSaved& s, TensorId d,
                                                               std::span<const Ref> held) {
  const DType dtype = kernel(in);
  const std::int64_t n = q_values();
  const auto product = [&](const OperandNames& operand, TensorId other) {
    const TensorId made = temporary(operand.grad_cast, n, dtype);
    op(names.scores).read(d).read(other).write(made);
    b_.work().gemm(of_rows(dtype));
    return copy(operand.scaled, made, n, dtype);
  };
  Grads grads{kNoTensor, kNoTensor, kNoTensor};
  if (in.q_grad) grads[0] = product(names.q, s.k);
  if (in.k_grad) grads[1] = product(names.k, s.q);
  auto done = op(names.scores).read(d).read(s.q).read(s.k);
  b_.work().moves(0, 0);
  release(done, held);
  return grads;
}

TensorId AttentionWriter::soft_cap_backward(const AttentionNames& names, const AttentionInput& in,
                                            const AttentionSaved& s, TensorId d) {
  if (!in.soft_cap) return d;
  const std::int64_t n = scores();
  const DType dtype = kernel(in);
  d = copy(names.capped, d, n, dtype);
  const TensorId d_tanh = temporary(names.tanh, n, dtype);
  op(names.tanh).read(d).read(s.tanh).write(d_tanh);
  return copy(names.divided, d_tanh, n, dtype);
}

// softmax of fp16 into fp32 reads the fp16 scores themselves (ATen/native/SoftMax.cpp,
// half_to_float: fp16 alone, not bf16).
bool AttentionWriter::softmax_reads_half(DType masked, DType softmax) {
  return masked == DType::fp16 && softmax == DType::fp32;
}

// Llama: softmax(…, dtype=fp32).to(query's dtype); GPT-2: softmax, which autocast runs in fp32,
// then .type(value's dtype); BERT: without that. A mask in fp32 has promoted the scores.
AttentionWriter::SoftmaxDtypes AttentionWriter::softmax_dtypes(const AttentionInput& in) const {
  const DType masked = needs_mask() ? promoted(kernel(in), mask_dtype()) : kernel(in);
  const bool fp32 = in.softmax == models::EagerSoftmax::fp32;
  const DType wide = fp32 || regime_.autocast ? DType::fp32 : masked;
  if (fp32) return {masked, wide, in.dtype};
  return {masked, wide, in.softmax == models::EagerSoftmax::as_computed ? regime_.compute : wide};
}

// What goes into the second product is in the kernel's dtype.
TensorId AttentionWriter::eager_softmax(const AttentionNames& names, const AttentionInput& in,
                                        TensorId masked, DType masked_dtype, AttentionSaved& s) {
  const std::int64_t n = scores();
  const DType wide = softmax_dtypes(in).wide, returned = softmax_dtypes(in).returned;
  const bool at_once = in.softmax == models::EagerSoftmax::fp32;
  const bool reads_half = softmax_reads_half(masked_dtype, wide);
  const TensorId from =
      reads_half ? masked : cast(names.masked_fp32, masked, n, masked_dtype, wide);
  s.softmax = make(names.softmax, n, wide);
  b_.fuses(false);
  op(names.softmax).read(from).read(at_once ? kNoTensor : masked).write(s.softmax);
  b_.work().moves(2 * bytes(n, wide).real());
  b_.fuses(true);
  s.weights = cast(names.probabilities, s.softmax, n, wide, returned, Category::activations);
  // In Llama's one expression the masked scores keep their name until the probabilities take it.
  if (at_once && s.weights != s.softmax) op(names.probabilities).release(masked);
  TensorId probabilities = s.weights;
  if (d_.attention_dropout > 0) {
    probabilities = dropout(names.dropped, names.dropout_mask, d_.attention_dropout, s.weights, n,
                            returned, s.dropout_mask);
    s.weights = probabilities;
  }
  s.probabilities =
      cast(names.probabilities, probabilities, n, returned, regime_.compute, Category::activations);
  return s.probabilities;
}

// _softmax_backward_data makes, inside the kernel's wrapper, gradient · output and its result.
TensorId AttentionWriter::softmax_backward(const AttentionNames& names, const AttentionSaved& s,
                                           TensorId d, DType dtype, DType result) {
  const TensorId d_in = temporary(names.softmax_grad, scores(), result);
  b_.fuses(false);
  op(names.softmax).read(d).read(s.softmax).write(d_in).scratch(bytes(scores(), dtype));
  // gradient · output, made and read again, beside the operands.
  b_.work().moves((bytes(scores(), dtype) * 4 + bytes(scores(), result)).real(), 2);
  b_.fuses(true);
  return d_in;
}

AttentionWriter::Grads AttentionWriter::eager_backward(const AttentionNames& names,
                                                       const AttentionInput& in,
                                                       const AttentionSaved& saved, TensorId d_out,
                                                       std::span<const Ref> held) {
  const DType dtype = kernel(in), value = regime_.compute;
  const std::int64_t n = q_values(), scores = this->scores();
  const bool scored = in.q_grad || in.k_grad;
  const auto [masked, wide, returned] = softmax_dtypes(in);
  if (lays_out()) d_out = copy(names.out_grad, d_out, n, value);
  const AttentionSaved& s = recall(names, in, saved);
  TensorId d_v = in.v_grad ? temporary(names.v.grad_wide, n, value) : kNoTensor;
  TensorId d = scored ? temporary(names.probabilities_grad, scores, value) : kNoTensor;
  auto second = op(names.product);
  second.read(d_out).write(d_v).write(d);
  if (in.v_grad) second.read(s.probabilities);
  if (scored) second.read(s.v);
  if (in.v_grad) b_.work().gemm(of_rows(value));
  if (scored) b_.work().gemm(of_scores(value));
  b_.fuses(true);
  TensorId d_q = kNoTensor, d_k = kNoTensor;
  if (scored) {
    d = cast(names.probabilities_grad, d, scores, value, returned);
    d = dropout_backward(names.dropped, d, s.dropout_mask, scores, returned);
    d = cast(names.softmax_grad_cast, d, scores, returned, wide);
    const bool to_half = softmax_reads_half(masked, wide);
    d = softmax_backward(names, s, d, wide, to_half ? masked : wide);
    if (!to_half) d = cast(names.masked_fp32, d, scores, wide, masked);
    d = cast(names.masked, d, scores, masked, dtype);
    d = soft_cap_backward(names, in, s, d);
    b_.fuses(false);
    if (in.alibi) {
      const Grads of_scores = biased_scores_backward(names, in, s, d, held);
      return {of_scores[0], of_scores[1], d_v};
    }
    d = copy(names.scores_grad, d, scores, dtype);
    d_k = in.k_grad ? temporary(names.k.grad_cast, n, dtype) : kNoTensor;
    d_q = in.q_grad ? temporary(names.q.grad_cast, n, dtype) : kNoTensor;
    auto first = op(names.scores);
    first.read(d).write(d_k).write(d_q);
    if (in.k_grad) first.read(s.q);
    if (in.q_grad) first.read(s.k);
    release(first, held);
    if (in.q_grad) b_.work().gemm(of_rows(dtype));
    if (in.k_grad) b_.work().gemm(of_rows(dtype));
    d_q = cast(names.q.grad_rotated, d_q, n, dtype, in.dtype);
    d_k = cast(names.k.grad_wide, d_k, n, dtype, in.dtype);
  }
  b_.fuses(false);
  if (!grouped()) return {d_q, d_k, d_v};
  if (d_v != kNoTensor) d_v = sum_groups(names.v, d_v, value);
  if (d_k != kNoTensor) d_k = sum_groups(names.k, d_k, in.dtype);
  return {d_q, d_k, d_v};
}

// _scaled_dot_product_attention_math (ATen/native/transformers/attention.cpp): 16-bit operands are
// computed in fp32; q and k are scaled by the root of the scale; a causal mask [s, s] is made from
// booleans; keys and values are repeated for grouped queries; _safe_softmax with booleans for rows
// that are masked throughout; 16-bit probabilities are made and dropped. Saved: q and k as the
// product read them, the softmax (after dropout too), v. C++ holds the rest until it returns.
void AttentionWriter::math_forward(const AttentionNames& names, const AttentionInput& in,
                                   bool stops, AttentionSaved& s) {
  const DType dtype = kernel(in), value = regime_.compute, wide = DType::fp32;
  const std::int64_t n = q_values(), kv = kv_values(), square = tokens_.length * tokens_.length;
  constexpr Category kKept = Category::activations;
  const TensorId k_low = cast(names.k.cast, in.k, kv, in.dtype, dtype);
  const TensorId q_low = cast(names.q.cast, in.q, n, in.dtype, dtype);
  const TensorId q = cast(names.q.grad_cast, q_low, n, dtype, wide);
  const TensorId k = cast(names.k.grad_cast, k_low, kv, dtype, wide);
  TensorId v = cast(names.v.cast, in.v, kv, value, wide, kKept);
  const TensorId q_scaled = copy(names.q.scaled, q, n, wide, kKept);
  TensorId mask = kNoTensor;
  if (!d_.bidirectional) {
    mask = temporary(names.mask, square, wide);
    op(names.mask).write(mask).scratch(bytes(square, DType::boolean) + fp32(1) * 2);
  }
  TensorId k_repeated = k;
  const TensorId v_plain = v;
  if (grouped()) {
    k_repeated = copy(names.k.repeated, k, n, wide);
    v = copy(names.v.repeated, v, n, wide, kKept);
  }
  s.k = copy(names.k.scaled, k_repeated, n, wide, kKept);
  const TensorId k_scaled = s.k;
  s.q = lays_out(in) ? copy(names.q.laid_out, q_scaled, n, wide, kKept) : q_scaled;
  if (lays_out(in) && !grouped()) s.k = copy(names.k.laid_out, s.k, n, wide, kKept);
  const TensorId scores = temporary(names.scores, this->scores(), wide);
  op(names.scores).read(s.q).read(s.k).read(k_scaled).write(scores);
  b_.work().gemm(of_scores(wide));
  TensorId masked = scores;
  if (!d_.bidirectional) {
    masked = temporary(names.masked, this->scores(), wide);
    op(names.masked).read(scores).read(mask).write(masked);
  }
  s.softmax = make(names.softmax, this->scores(), wide, kKept);
  op(names.softmax)
      .read(masked)
      .write(s.softmax)
      .scratch(bytes(this->scores(), DType::boolean) +
               bytes(checked_multiply(tokens_.total(), d_.heads), DType::boolean) + fp32(1));
  // Booleans of what is masked, written and read, beside the softmax.
  b_.work().moves(
      (bytes(this->scores(), wide) * 3 + bytes(this->scores(), DType::boolean) * 2).real(), 3);
  s.probabilities = dropout(names.dropped, names.dropout_mask, d_.attention_dropout, s.softmax,
                            this->scores(), wide, s.dropout_mask);
  const TensorId narrow = cast(names.probabilities, s.probabilities, this->scores(), wide, dtype);
  s.v = lays_out() && !grouped() ? copy(names.v.laid_out, v, n, wide, kKept) : v;
  const auto held = [&](OpBuilder last) {
    last.release(q_low).release(k_low).release(q).release(k).release(v_plain).release(q_scaled);
    last.release(mask).release(k_repeated);
    if (narrow != s.probabilities) last.release(narrow);
  };
  if (stops) return held(op(names.product));
  const TensorId product = temporary(names.product, n, wide);
  op(names.product).read(s.probabilities).read(s.v).write(product);
  b_.work().gemm(of_rows(wide));
  const TensorId low = cast(names.product_cast, product, n, wide, value);
  held(op(names.product_cast).release(product));
  s.out = copy(names.out, low, n, value, kKept);
}

AttentionWriter::Grads AttentionWriter::math_backward(const AttentionNames& names,
                                                      const AttentionInput& in,
                                                      const AttentionSaved& saved, TensorId d_out,
                                                      std::span<const Ref> held) {
  const DType dtype = kernel(in), value = regime_.compute, wide = DType::fp32;
  const std::int64_t n = q_values(), kv = kv_values(), scores = this->scores();
  d_out = cast(names.out_grad_cast, d_out, n, value, wide);
  if (lays_out()) d_out = copy(names.out_grad, d_out, n, wide);
  const AttentionSaved& s = recall(names, in, saved);
  TensorId d_v = temporary(names.v.grad_wide, n, wide);
  TensorId d = temporary(names.probabilities_grad, scores, wide);
  op(names.product).read(d_out).read(s.v).read(s.probabilities).write(d_v).write(d);
  b_.work().gemm(of_rows(wide)).gemm(of_scores(wide));
  d = dropout_backward(names.dropped, d, s.dropout_mask, scores, wide);
  d = softmax_backward(names, s, d, wide, wide);
  TensorId d_k = temporary(names.k.grad_cast, n, wide);
  TensorId d_q = temporary(names.q.grad_cast, n, wide);
  auto first = op(names.scores);
  first.read(d).read(s.q).read(s.k).write(d_k).write(d_q);
  release(first, held);
  b_.work().gemm(of_rows(wide)).gemm(of_rows(wide));
  d_k = copy(names.k.grad_wide, d_k, n, wide);
  if (grouped()) {
    d_v = sum_groups(names.v, d_v, wide);
    d_k = sum_groups(names.k, d_k, wide);
  }
  d_q = copy(names.q.grad_wide, d_q, n, wide);
  d_v = cast(names.v.grad_rotated, d_v, kv, wide, value);
  d_k = cast(names.k.grad_cast, d_k, kv, wide, dtype);
  d_q = cast(names.q.grad_cast, d_q, n, wide, dtype);
  d_q = cast(names.q.grad_rotated, d_q, n, dtype, in.dtype);
  d_k = cast(names.k.grad_rotated, d_k, kv, dtype, in.dtype);
  return {d_q, d_k, d_v};
}

}  // namespace plimsoll::planner::pytorch
