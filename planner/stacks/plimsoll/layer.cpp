// A layer's norms, MLP, and the order of it all.
#include "planner/stacks/plimsoll/layer_writer.h"

namespace plimsoll::planner::own {

using models::Access;
using models::MlpKind;
using models::NormKind;

Wants wants_of(const LayerSlots& layer, bool input_grad) {
  Wants w;
  w.input = input_grad;
  w.input_norm = w.input || layer.input_norm.trains();
  w.attention = w.input_norm || trains(layer.q) || trains(layer.k) || trains(layer.v) ||
                layer.q_norm.trains() || layer.k_norm.trains();
  w.middle = w.attention || trains(layer.o);
  w.post_norm = w.middle || layer.post_norm.trains();
  w.hidden = w.post_norm || trains(layer.gate) || trains(layer.up);
  w.any = w.hidden || trains(layer.down);
  return w;
}

LayerWriter::LayerWriter(ProgramBuilder& builder, const models::Decoder& decoder,
                         const Regime& regime, const models::Strategy& strategy, Tokens tokens)
    : b_(builder),
      d_(decoder),
      regime_(regime),
      n_(decoder.fused_qkv ? models::decisions::kGpt2Names : models::decisions::kLlamaNames),
      keeps_(models::decisions::keeps_of(strategy.recompute.kind)),
      attention_kind_(strategy.attention),
      adapter_dropout_(strategy.lora ? strategy.lora->dropout : 0),
      tokens_(tokens),
      total_(tokens.total()) {}

// Norms -------------------------------------------------------------------------------------------

TensorId LayerWriter::norm(const NormNames& names, Ref input, std::int64_t width,
                           TensorId statistics) {
  const TensorId out = make(names.out, width);
  op(names.norm).touch(input.tensor, input.delta, input.beyond).write(out).write(statistics);
  return out;
}

// A norm's result that selective recomputation dropped.
TensorId LayerWriter::norm_again(const NormNames& names, Ref input, TensorId statistics) {
  const TensorId out = temporary(names.out, d_.hidden);
  b_.op(names.norm, Phase::recompute)
      .touch(input.tensor, input.delta, input.beyond)
      .read(statistics)
      .write(out);
  return out;
}

// Adds into `d` (nothing where that gradient is not wanted).
void LayerWriter::norm_backward(const NormNames& names, const NormPart& part, Ref input,
                                TensorId statistics, TensorId d_out, TensorId d) {
  auto norm = op(names.norm);
  norm.touch(input.tensor, input.delta, input.beyond).read(statistics).read(d_out).update(d);
  if (part.trains()) norm.update(gradients_);
  // Sums by columns read the gradient and the input once more.
  b_.work().moves((part.trains() ? 6 : 4) * bytes(part.width, regime_.compute).real());
}

// MLP ---------------------------------------------------------------------------------------------

// What is saved takes a new tensor; otherwise the result takes gate's place (GPT-2: c_fc's).
void LayerWriter::mlp(const LayerSlots& layer, const Wants& wants, TensorId output, bool last,
                      LayerTensors& t) {
  const bool gated = d_.mlp == MlpKind::swiglu;
  if (gated) t.gate = product(n_.gate, layer.gate, t.n2, kNoTensor, t.gate_a);
  t.up = product(n_.up, layer.up, t.n2, kNoTensor, t.up_a);
  // Without gradients of gate and up, down_proj's weight gradient needs p alone.
  const bool saves_product = wants.any && !wants.hidden && reads_input(layer.down);
  if (last && layer.down.lora_rank == 0 && !saves_product) return;
  TensorId p = gated ? t.gate : t.up;
  if (wants.hidden) {
    p = make(n_.product, d_.ffn);
    op(n_.activation).read(t.gate).read(t.up).write(p);
  } else {
    op(n_.activation).update(p).read(gated ? t.up : kNoTensor);
  }
  if (saves_product) t.product = p;
  if (last) {
    t.down_a = adapter_a(n_.down, layer.down, p);
    return;
  }
  product(n_.down, layer.down, p, output, t.down_a);
}

// The stream's gradient as a branch sees it: behind dropout a masked copy.
TensorId LayerWriter::branch(TensorId d) {
  if (d_.residual_dropout == 0) return d;
  const TensorId masked = temporary(n_.residual_dropout_out, d_.hidden);
  op(n_.residual_dropout).read(d).write(masked);
  return masked;
}

void LayerWriter::mlp_backward(const LayerSlots& layer, const Wants& wants, TensorId d,
                               const LayerTensors& t) {
  const TensorId d_out = branch(d);
  const TensorId d_a = adapter_gradient(n_.down, layer.down, d_out, t.down_a);
  TensorId p = kNoTensor;
  if (wants.hidden) {
    p = temporary(n_.down.input_grad, d_.ffn);
    input_gradient(n_.down, layer.down, d_out, d_a, p);
    op(n_.activation).update(p).update(t.gate).update(t.up);
  } else if (reads_input(layer.down)) {
    p = t.product;
  }
  weight_gradient(n_.down, layer.down, p, d_out, d_a);
  if (!wants.hidden) return;
  const bool reads_norm = reads_input(layer.gate) || reads_input(layer.up);
  TensorId n2 = t.n2;
  if (reads_norm && !keeps_.norm_outputs && wants.post_norm)
    n2 = norm_again(n_.post_norm, {t.middle}, t.statistics2);
  const bool gated = d_.mlp == MlpKind::swiglu;
  TensorId gate_d_a = kNoTensor;
  if (gated) {
    gate_d_a = adapter_gradient(n_.gate, layer.gate, t.gate, t.gate_a);
    weight_gradient(n_.gate, layer.gate, n2, t.gate, gate_d_a);
  }
  const TensorId up_d_a = adapter_gradient(n_.up, layer.up, t.up, t.up_a);
  weight_gradient(n_.up, layer.up, n2, t.up, up_d_a);
  if (!wants.post_norm) return;
  const TensorId d_n2 = temporary(n_.post_norm.out_grad, d_.hidden);
  if (gated) input_gradient(n_.gate, layer.gate, t.gate, gate_d_a, d_n2);
  input_gradient(n_.up, layer.up, t.up, up_d_a, d_n2);
  norm_backward(n_.post_norm, layer.post_norm, {t.middle}, t.statistics2, d_n2,
                wants.middle ? d : kNoTensor);
}

// Layer -------------------------------------------------------------------------------------------

void LayerWriter::forward(Phase phase, const LayerSlots& layer, const Wants& wants, Ref input,
                          TensorId output, bool last_of_checkpoint, LayerTensors& t) {
  phase_ = phase;
  t = {};
  if (last_of_checkpoint && !wants.hidden && !reads_input(layer.down)) return;
  const std::int64_t columns = d_.norm == NormKind::layer_norm ? 2 : 1;
  if (wants.input_norm) t.statistics1 = make_statistics(n_.input_norm.statistics, columns);
  t.n1 = norm(n_.input_norm, input, d_.hidden, t.statistics1);
  qkv(layer, wants, t);
  attention(wants, t);
  t.middle = product(n_.o, layer.o, t.attention, make(n_.attention_residual, d_.hidden), t.o_a);
  op(n_.attention_residual).touch(input.tensor, input.delta, input.beyond).update(t.middle);
  if (wants.post_norm) t.statistics2 = make_statistics(n_.post_norm.statistics, columns);
  t.n2 = norm(n_.post_norm, {t.middle}, d_.hidden, t.statistics2);
  mlp(layer, wants, output, last_of_checkpoint, t);
  if (!last_of_checkpoint) op(n_.residual).read(t.middle).update(output);
}

void LayerWriter::backward(const LayerSlots& layer, const Wants& wants, Ref input, TensorId d,
                           TensorId gradients, const LayerTensors& t) {
  phase_ = Phase::backward;
  gradients_ = gradients;
  mlp_backward(layer, wants, d, t);
  if (!wants.middle) return;
  const TensorId d_out = branch(d);
  const TensorId d_a = adapter_gradient(n_.o, layer.o, d_out, t.o_a);
  weight_gradient(n_.o, layer.o, t.attention, d_out, d_a);
  if (!wants.attention) return;
  const TensorId d_attention = temporary(n_.attention_out_grad, d_.q_width());
  input_gradient(n_.o, layer.o, d_out, d_a, d_attention);
  qkv_backward(layer, wants, input, d, t, attention_backward(t, d_attention));
}

}  // namespace plimsoll::planner::own
