// Attention: projections, head norms, rotation, and the kernel or the stored matrix.
#include "planner/stacks/plimsoll/layer_writer.h"

namespace plimsoll::planner::own {

using models::Attention;
using models::PositionKind;

// In place where its input need not be saved.
TensorId LayerWriter::head_norm(const NormNames& names, const NormPart& part, bool saves,
                                TensorId in, std::int64_t heads, TensorId& statistics) {
  if (part.width == 0) return in;
  if (!saves) {
    op(names.norm).update(in);
    return in;
  }
  statistics = make_statistics(names.statistics, heads);
  const TensorId out = make(names.out, checked_multiply(heads, d_.head_dim));
  op(names.norm).read(in).write(out).write(statistics);
  return out;
}

void LayerWriter::qkv(const LayerSlots& layer, const Wants& wants, LayerTensors& t) {
  const TensorId q = product(n_.q, layer.q, t.n1, kNoTensor, t.q_a);
  if (d_.fused_qkv) {
    t.q = q;
    return;
  }
  const TensorId k = product(n_.k, layer.k, t.n1, kNoTensor, t.k_a);
  t.v = product(n_.v, layer.v, t.n1, kNoTensor, t.v_a);
  const auto wanted = [&](const NormPart& norm, const LinearPart& part) {
    return wants.input_norm || (wants.any && (norm.trains() || trains(part)));
  };
  t.q_in = q;
  t.q = head_norm(n_.q_norm, layer.q_norm, wanted(layer.q_norm, layer.q), q, d_.heads,
                  t.q_statistics);
  t.k_in = k;
  t.k = head_norm(n_.k_norm, layer.k_norm, wanted(layer.k_norm, layer.k), k, d_.kv_heads,
                  t.k_statistics);
  if (d_.position == PositionKind::rope) op(n_.rotary).update(t.q).update(t.k);
}

// [sequences, heads, length, length]
Bytes LayerWriter::matrix_bytes() const {
  const std::int64_t row = checked_multiply(d_.heads, tokens_.length);
  return bytes(row, models::decisions::probabilities_dtype(attention_kind_, regime_.compute));
}

TensorId LayerWriter::attention_matrix(const LayerTensors& t, bool again) {
  const Phase phase = again ? Phase::recompute : phase_;
  const TensorId p = b_.tensor(n_.probabilities, matrix_bytes(),
                               again ? Category::temporaries : Category::activations);
  b_.op(n_.scores, phase).read(t.q).read(t.k).write(p);
  b_.work().gemm(of_scores());
  b_.op(n_.softmax, phase).update(p);
  return p;
}

TensorId LayerWriter::drop_matrix(TensorId probabilities) {
  if (d_.attention_dropout == 0) return probabilities;
  const TensorId dropped =
      b_.tensor(n_.probabilities_dropped, matrix_bytes(), Category::temporaries);
  op(n_.attention_dropout).read(probabilities).write(dropped);
  return dropped;
}

void LayerWriter::attention(const Wants& wants, LayerTensors& t) {
  if (attention_kind_ == Attention::flash) {
    t.attention = make(n_.attention_out, d_.q_width());
    if (wants.attention) t.logsumexp = make_statistics(n_.logsumexp, d_.heads);
    op(n_.attention).read(t.q).read(t.k).read(t.v).write(t.attention).write(t.logsumexp);
    b_.work().attends({false, regime_.compute, fused_flops()});
    return;
  }
  t.probabilities = attention_matrix(t, false);
  const TensorId dropped = drop_matrix(t.probabilities);
  t.attention = make(n_.attention_out, d_.q_width());
  op(n_.attention).read(dropped).read(d_.fused_qkv ? t.q : t.v).write(t.attention);
  b_.work().gemm(of_rows());
}

double LayerWriter::fused_flops() const {
  return fused_attention_flops({.tokens = total_,
                                .length = tokens_.length,
                                .width = d_.q_width(),
                                .window = d_.window,
                                .causal = !d_.bidirectional});
}
Gemm LayerWriter::of_scores() const {
  const double s = static_cast<double>(tokens_.length);
  return {regime_.compute, s, s, static_cast<double>(d_.head_dim),
          static_cast<double>(tokens_.sequences * d_.heads)};
}
Gemm LayerWriter::of_rows() const {
  const double s = static_cast<double>(tokens_.length);
  return {regime_.compute, s, static_cast<double>(d_.head_dim), s,
          static_cast<double>(tokens_.sequences * d_.heads)};
}

// dq, dk, dv; GPT-2's are one tensor.
std::array<TensorId, 3> LayerWriter::attention_backward(const LayerTensors& t, TensorId d_out) {
  const std::int64_t q_width = d_.fused_qkv ? 3 * d_.q_width() : d_.q_width();
  if (attention_kind_ == Attention::flash) {
    const TensorId dq = temporary(n_.q_grad, q_width);
    const TensorId dk = d_.fused_qkv ? kNoTensor : temporary(n_.k_grad, d_.kv_width());
    const TensorId dv = d_.fused_qkv ? kNoTensor : temporary(n_.v_grad, d_.kv_width());
    op(n_.attention)
        .read(d_out)
        .read(t.q)
        .read(t.k)
        .read(t.v)
        .read(t.attention)
        .read(t.logsumexp)
        .write(dq)
        .write(dk)
        .write(dv);
    b_.work().attends({true, regime_.compute, 2.5 * fused_flops()});
    return {dq, dk, dv};
  }
  const TensorId p = keeps_.probabilities ? t.probabilities : attention_matrix(t, true);
  const TensorId v = d_.fused_qkv ? t.q : t.v;
  const TensorId dropped = drop_matrix(p);
  const TensorId dq = temporary(n_.q_grad, q_width);
  const TensorId dv = d_.fused_qkv ? dq : temporary(n_.v_grad, d_.kv_width());
  op(n_.attention).read(dropped).read(d_out).write(dv);
  b_.work().gemm(of_rows());
  const TensorId dp = b_.tensor(n_.probabilities_grad, matrix_bytes(), Category::temporaries);
  op(n_.probabilities_grad).read(d_out).read(v).write(dp);
  b_.work().gemm(of_scores());
  op(n_.softmax).read(p).update(dp);
  const TensorId dk = d_.fused_qkv ? kNoTensor : temporary(n_.k_grad, d_.kv_width());
  op(n_.scores).read(dp).read(t.q).read(t.k).write(dq).write(dk);
  b_.work().gemm(of_rows()).gemm(of_rows());
  return {dq, dk, d_.fused_qkv ? kNoTensor : dv};
}

void LayerWriter::qkv_backward(const LayerSlots& layer, const Wants& wants, Ref input, TensorId d,
                               const LayerTensors& t, std::array<TensorId, 3> d_qkv) {
  const auto [dq, dk, dv] = d_qkv;
  const auto wanted = [&](const NormPart& norm, const LinearPart& part) {
    return wants.input_norm || norm.trains() || trains(part);
  };
  const bool wants_q = wanted(layer.q_norm, layer.q), wants_k = wanted(layer.k_norm, layer.k);
  if (d_.position == PositionKind::rope && (wants_q || wants_k))
    op(n_.rotary).update(wants_q ? dq : kNoTensor).update(wants_k ? dk : kNoTensor);
  const auto through_norm = [&](const NormNames& names, const NormPart& part,
                                const LinearPart& linear, TensorId in, TensorId statistics,
                                TensorId dx) {
    if (part.width == 0 || !(wants.input_norm || part.trains() || trains(linear))) return;
    auto norm = op(names.norm);
    norm.read(in).read(statistics).update(dx);
    if (part.trains()) norm.update(gradients_);
    const std::int64_t width = &part == &layer.q_norm ? d_.q_width() : d_.kv_width();
    b_.work().moves((part.trains() ? 5 : 3) * bytes(width, regime_.compute).real());
  };
  through_norm(n_.k_norm, layer.k_norm, layer.k, t.k_in, t.k_statistics, dk);
  through_norm(n_.q_norm, layer.q_norm, layer.q, t.q_in, t.q_statistics, dq);
  TensorId n1 = t.n1;
  if (!keeps_.norm_outputs && wants.input_norm &&
      (reads_input(layer.q) || reads_input(layer.k) || reads_input(layer.v)))
    n1 = norm_again(n_.input_norm, input, t.statistics1);
  struct Projection {
    const LinearNames& names;
    const LinearPart& part;
    TensorId d, a_out, d_a;
  };
  std::array<Projection, 3> projections{{{n_.q, layer.q, dq, t.q_a, kNoTensor},
                                         {n_.k, layer.k, dk, t.k_a, kNoTensor},
                                         {n_.v, layer.v, dv, t.v_a, kNoTensor}}};
  for (Projection& p : projections) {
    if (p.part.in == 0) continue;
    p.d_a = adapter_gradient(p.names, p.part, p.d, p.a_out);
    weight_gradient(p.names, p.part, n1, p.d, p.d_a);
  }
  if (!wants.input_norm) return;
  const TensorId d_n1 = temporary(n_.input_norm.out_grad, d_.hidden);
  for (const Projection& p : projections)
    if (p.part.in > 0) input_gradient(p.names, p.part, p.d, p.d_a, d_n1);
  norm_backward(n_.input_norm, layer.input_norm, input, t.statistics1, d_n1,
                wants.input ? d : kNoTensor);
}

}  // namespace plimsoll::planner::own
