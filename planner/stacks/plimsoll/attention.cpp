// Rotation of queries and keys, and attention: the kernel, or the stored matrix.
#include "planner/stacks/plimsoll/layer_writer.h"

namespace plimsoll::planner::plimsoll_stack {

using models::Attention;
using models::decisions::ValuePart;

// Rotation, in place both ways --------------------------------------------------------------------

void LayerWriter::rotary(const LayerOp& at) {
  OpBuilder rotates = op(at.name);
  TensorId before = kNoTensor;
  for (const ValuePart& part : at.in)
    if (part && value(part.value) != before) rotates.update(before = value(part.value));
}

void LayerWriter::rotary_backward(const LayerOp& at) {
  bool any = false;
  for (const ValuePart& part : at.in) any = any || wants(part.value);
  if (!any) return;
  OpBuilder rotates = op(at.name);
  TensorId before = kNoTensor;
  for (const ValuePart& part : at.in)
    if (wants(part.value) && d(part.value) != before) rotates.update(before = d(part.value));
}

// Attention ---------------------------------------------------------------------------------------

// [sequences, heads, length, length]
SymBytes LayerWriter::matrix_bytes() const {
  const SymInt row = checked_multiply(d_.heads, tokens_.length);
  return bytes(row, models::decisions::probabilities_dtype(attention_kind_, regime_.compute));
}

// Each tensor once: GPT-2's q, k and v are one.
template <class Visit>
void LayerWriter::each_operand(const LayerOp& at, std::size_t operands, Visit visit) {
  for (std::size_t i = 0; i < operands; ++i)
    if (i == 0 || at.in[i].value != at.in[i - 1].value) visit(at.in[i].value);
}

TensorId LayerWriter::attention_matrix(const LayerOp& at, bool again) {
  const Phase phase = again ? Phase::recompute : phase_;
  const TensorId p = b_.tensor(at.attention.probabilities, matrix_bytes(),
                               again ? Category::temporaries : Category::activations);
  OpBuilder scores = b_.op(at.attention.scores, phase);
  each_operand(at, 2, [&](ValueId id) { scores.read(value(id)); });
  scores.write(p);
  b_.work().gemm(of_scores());
  b_.op(at.attention.softmax, phase).update(p);
  return p;
}

TensorId LayerWriter::drop_matrix(const LayerOp& at, TensorId probabilities) {
  if (d_.attention_dropout == 0) return probabilities;
  const TensorId dropped =
      b_.tensor(at.attention.probabilities_dropped, matrix_bytes(), Category::temporaries);
  op(at.attention.dropout).read(probabilities).write(dropped);
  return dropped;
}

void LayerWriter::attention(const LayerOp& at, std::size_t place) {
  const TensorId& out = value(at.out);
  if (attention_kind_ == Attention::flash) {
    value(at.out) = make_value(at.out);
    if (wants(at.out)) t_->beside[place] = make_statistics(at.attention.logsumexp, d_.heads);
    OpBuilder flash = op(at.name);
    each_operand(at, 3, [&](ValueId id) { flash.read(value(id)); });
    flash.write(out).write(t_->beside[place]);
    b_.work().attends({false, regime_.compute, fused_flops(at)});
    return;
  }
  t_->beside[place] = attention_matrix(at, false);
  const TensorId dropped = drop_matrix(at, t_->beside[place]);
  value(at.out) = make_value(at.out);
  op(at.name).read(dropped).read(value(at.in[2].value)).write(out);
  b_.work().gemm(of_rows());
}

double LayerWriter::fused_flops(const LayerOp& at) const {
  if (!b_.work().asked()) return 0;
  return fused_attention_flops({.tokens = total_,
                                .length = tokens_.length,
                                .width = d_.q_width(),
                                .window = at.sliding ? d_.window : 0,
                                .causal = !d_.bidirectional});
}
Gemm LayerWriter::of_scores() const {
  const double s = tokens_.length.real();
  return {regime_.compute, s, s, static_cast<double>(d_.head_dim),
          (tokens_.sequences * d_.heads).real()};
}
Gemm LayerWriter::of_rows() const {
  const double s = tokens_.length.real();
  return {regime_.compute, s, static_cast<double>(d_.head_dim), s,
          (tokens_.sequences * d_.heads).real()};
}

// dq, dk, dv; GPT-2's are one tensor.
void LayerWriter::attention_backward(const LayerOp& at, std::size_t place) {
  if (!wants(at.out)) return;
  if (attention_kind_ != Attention::flash) return stored_attention_backward(at, place);
  const auto gradient = [&](ValueId id) { d(id) = temporary(about(id).gradient, about(id).width); };
  each_operand(at, 3, gradient);
  OpBuilder flash = op(at.name);
  flash.read(d(at.out));
  each_operand(at, 3, [&](ValueId id) { flash.read(value(id)); });
  flash.read(value(at.out)).read(t_->beside[place]);
  each_operand(at, 3, [&](ValueId id) { flash.write(d(id)); });
  b_.work().attends({true, regime_.compute, 2.5 * fused_flops(at)});
}

void LayerWriter::stored_attention_backward(const LayerOp& at, std::size_t place) {
  const ValueId q = at.in[0].value, k = at.in[1].value, v = at.in[2].value;
  const auto gradient = [&](ValueId id) {
    if (d(id) == kNoTensor) d(id) = temporary(about(id).gradient, about(id).width);
  };
  const TensorId p = keeps_.probabilities ? t_->beside[place] : attention_matrix(at, true);
  const TensorId dropped = drop_matrix(at, p);
  gradient(q);
  gradient(v);
  op(at.name).read(dropped).read(d(at.out)).write(d(v));
  b_.work().gemm(of_rows());
  const TensorId dp =
      b_.tensor(at.attention.probabilities_grad, matrix_bytes(), Category::temporaries);
  op(at.attention.probabilities_grad).read(d(at.out)).read(value(v)).write(dp);
  b_.work().gemm(of_scores());
  op(at.attention.softmax).read(p).update(dp);
  gradient(k);
  OpBuilder scores = op(at.attention.scores);
  scores.read(dp);
  each_operand(at, 2, [&](ValueId id) { scores.read(value(id)); });
  each_operand(at, 2, [&](ValueId id) { scores.write(d(id)); });
  b_.work().gemm(of_rows()).gemm(of_rows());
}

}  // namespace plimsoll::planner::plimsoll_stack
