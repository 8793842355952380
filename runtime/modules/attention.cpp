// Attention: flash, or with the matrix stored (eager, math).
#include <algorithm>

#include "models/decisions/workspace.h"
#include "runtime/modules/layer_module.h"
#include "runtime/modules/sites.h"

namespace plimsoll::runtime {

namespace {

class AttentionModule final : public LayerModule {
 public:
  AttentionModule(LayerContext& context, std::size_t at)
      : LayerModule(context, at), names_(op().attention) {}

  void forward(ForwardPass& pass) override {
    if (flash())
      attend_flash(pass);
    else
      attend_stored(pass);
  }
  void backward(BackwardPass& pass) override {
    if (!wants(op().out)) return;
    if (flash())
      backward_flash(pass);
    else
      backward_stored(pass);
  }
  Bytes workspace() const override {
    return flash() && wants(op().out) ? flash_scratch() : Bytes(0);
  }

 private:
  const ValuePart& q() const { return op().in[0]; }
  const ValuePart& k() const { return op().in[1]; }
  const ValuePart& v() const { return op().in[2]; }
  // q, k and v side by side in one tensor.
  bool fused() const { return q().value == v().value; }
  bool flash() const { return settings().attention == models::Attention::flash; }
  kernels::AttentionShape shape() const;
  Extents logsumexp_shape() const;
  TensorView unkept_logsumexp();
  kernels::Dropout dropout() const;
  bool drops() const { return settings().decoder.attention_dropout > 0; }

  void attend_flash(ForwardPass& pass);
  void attend_stored(ForwardPass& pass);
  // The matrix.
  Tensor scores(LayerSaved& saved, Phase phase, const ForwardPass* pass);
  Tensor dropped(Operand probabilities, Phase phase);
  void consume(Op& running, LayerSaved& saved, const ValuePart& part) {
    running.consume(std::move(saved.values[static_cast<std::size_t>(part.value)]));
  }
  static kernels::Columns in(LayerSaved& saved, const ValuePart& part) {
    return columns(saved.values[static_cast<std::size_t>(part.value)].view(), part);
  }

  void backward_flash(BackwardPass& pass);
  void backward_stored(BackwardPass& pass);
  // The gradients of the matrix, which it returns, and of v.
  Tensor backward_values(BackwardPass& pass, Tensor d_out);
  kernels::Columns gradient(Op& running, BackwardPass& pass, const ValuePart& part);
  void consume_unread(Op& running, BackwardPass& pass, const ValuePart& part);

  // Whether the scratch is laid out for cuDNN too (decisions::kAttentionWorkspace).
  bool flash_for_library() const {
    return worker().device.kind() == models::Device::cuda && worker().regime.compute != DType::fp32;
  }
  Bytes flash_group_scratch() const;
  Bytes flash_scratch() const;

  const models::decisions::AttentionNames& names_;
};

kernels::AttentionShape AttentionModule::shape() const {
  const models::Decoder& d = settings().decoder;
  return {.sequences = worker().sequences,
          .length = worker().length,
          .heads = d.heads,
          .kv_heads = d.kv_heads,
          .head_dim = d.head_dim,
          .window = op().sliding ? d.window : 0,
          .scale = settings().attention_scale,
          .cap = op().soft_cap ? settings().attention_cap : 0};
}
kernels::Dropout AttentionModule::dropout() const {
  const std::int64_t row = checked_multiply(settings().decoder.heads, worker().length);
  return dropout_at(worker(), settings().decoder.attention_dropout,
                    stream_of(context_.index, op().site), checked_multiply(row, worker().length));
}

Extents AttentionModule::logsumexp_shape() const {
  return {worker().sequences, settings().decoder.heads, worker().length};
}
// cuDNN has no forward without: a pass that keeps none would take another kernel, with other bits,
// than the one that makes it again.
TensorView AttentionModule::unkept_logsumexp() {
  const Extents shape = logsumexp_shape();
  const bool fits = storage(Count(shape.elements()), models::decisions::kStatistics) <=
                    worker().workspace.bytes();
  if (!flash_for_library() || !fits) return {};
  return worker().scratch(models::decisions::kStatistics, shape);
}

// Forward -----------------------------------------------------------------------------------------

void AttentionModule::attend_flash(ForwardPass& pass) {
  Op running(worker(), names_.attention);
  const kernels::AttentionShape s = shape();
  Tensor out = running.make(names_.out, Category::activations,
                            {worker().tokens(), settings().decoder.q_width()});
  Tensor& logsumexp = pass.saved.beside[at_];
  if (pass.saves && wants(op().out))
    logsumexp = running.make(names_.logsumexp, Category::activations,
                             models::decisions::kStatistics, logsumexp_shape());
  worker().kernels.flash_forward(s, dropout(), in(pass.saved, q()), in(pass.saved, k()),
                                 in(pass.saved, v()), out.view(),
                                 logsumexp ? logsumexp.view() : unkept_logsumexp());
  for (const ValuePart& part : op().in)
    if (!pass.keeps(part.value)) consume(running, pass.saved, part);
  pass.value(op().out) = std::move(out);
}

void AttentionModule::attend_stored(ForwardPass& pass) {
  Tensor p = scores(pass.saved, worker().phase, &pass);
  const bool keeps = pass.saves && context_.requires_grad.beside[at_];
  Tensor masked;
  if (drops()) masked = dropped(reading(p, !keeps), worker().phase);
  {
    Op running(worker(), names_.attention);
    Tensor& out = pass.value(op().out);
    out = running.make(names_.out, Category::activations,
                       {worker().tokens(), settings().decoder.q_width()});
    const Operand read = masked ? reading_last(masked) : reading(p, !keeps);
    worker().kernels.attention_values(shape(), read.view, in(pass.saved, v()), out.view());
    read.read_by(running);
    if (!pass.keeps(v().value)) consume(running, pass.saved, v());
    if (pass.nobody_reads(op().out)) running.consume(std::move(out));
  }
  pass.saved.beside[at_] = std::move(p);
}

// In forward q and k may die with it.
Tensor AttentionModule::scores(LayerSaved& saved, Phase phase, const ForwardPass* pass) {
  const kernels::AttentionShape s = shape();
  Tensor p;
  {
    Op running(worker(), names_.scores, phase);
    p = running.make(
        names_.probabilities, pass != nullptr ? Category::activations : Category::temporaries,
        models::decisions::probabilities_dtype(settings().attention, worker().regime.compute),
        {s.sequences, s.heads, s.length, s.length});
    worker().kernels.attention_scores(s, in(saved, q()), in(saved, k()), p.view());
    for (const ValuePart& part : {q(), k()})
      if (pass != nullptr && !fused() && !pass->keeps(part.value)) consume(running, saved, part);
  }
  Op running(worker(), names_.softmax, phase);
  worker().kernels.softmax_forward(p.view());
  return p;
}

Tensor AttentionModule::dropped(Operand p, Phase phase) {
  Op running(worker(), names_.dropout, phase);
  Tensor masked =
      running.make(names_.probabilities_dropped, Category::temporaries, p.view.dtype, p.view.shape);
  worker().kernels.dropout(p.view, dropout(), false, masked.view());
  p.read_by(running);
  return masked;
}

// Backward ----------------------------------------------------------------------------------------

// Of q, k or v, in a tensor as wide as theirs; made by the first who writes it.
kernels::Columns AttentionModule::gradient(Op& running, BackwardPass& pass, const ValuePart& part) {
  Gradient& d = pass.gradient(part.value);
  const auto& value = context_.layer.values[static_cast<std::size_t>(part.value)];
  if (!d.own)
    d = Gradient::of(
        running.make(value.gradient, Category::temporaries, {worker().tokens(), value.width}));
  return columns(d.own.view(), part);
}

// What attention makes along with the others dies where it is made.
void AttentionModule::consume_unread(Op& running, BackwardPass& pass, const ValuePart& part) {
  if (!wants(part.value)) running.consume(std::move(pass.gradient(part.value).own));
}

void AttentionModule::backward_flash(BackwardPass& pass) {
  Op running(worker(), names_.attention, Phase::backward);
  const Tensor& out = pass.value(op().out);
  Tensor& d_out = pass.gradient(op().out).own;
  const kernels::Columns d_q = gradient(running, pass, q()), d_k = gradient(running, pass, k()),
                         d_v = gradient(running, pass, v());
  Tensor& logsumexp = pass.saved.beside[at_];
  worker().kernels.flash_backward(shape(), dropout(), std::as_const(d_out).view(),
                                  in(pass.saved, q()), in(pass.saved, k()), in(pass.saved, v()),
                                  out.view(), std::as_const(logsumexp).view(), d_q, d_k, d_v,
                                  worker().scratch(DType::fp32, {flash_scratch().value() / 4}));
  running.consume(std::move(d_out));
  for (const ValuePart& part : op().in) consume(running, pass.saved, part);
  running.consume(std::move(pass.value(op().out)));
  running.consume(std::move(logsumexp));
  for (const ValuePart& part : op().in) consume_unread(running, pass, part);
}

void AttentionModule::backward_stored(BackwardPass& pass) {
  Tensor& p = pass.saved.beside[at_];
  if (!p) p = scores(pass.saved, Phase::recompute, nullptr);
  Tensor d_p = backward_values(pass, std::move(pass.gradient(op().out).own));
  {
    Op running(worker(), names_.softmax, Phase::backward);
    worker().kernels.softmax_backward(std::as_const(p).view(), dropout(), d_p.view());
    running.consume(std::move(p));
  }
  Op running(worker(), names_.scores, Phase::backward);
  const kernels::Columns d_q = gradient(running, pass, q()), d_k = gradient(running, pass, k());
  worker().kernels.attention_scores_backward(shape(), d_p.view(), in(pass.saved, q()),
                                             in(pass.saved, k()), d_q, d_k);
  running.consume(std::move(d_p));
  consume(running, pass.saved, q());
  consume(running, pass.saved, k());
  consume_unread(running, pass, q());
  consume_unread(running, pass, k());
}

Tensor AttentionModule::backward_values(BackwardPass& pass, Tensor d_out) {
  const ConstTensorView probabilities = std::as_const(pass.saved.beside[at_]).view();
  Tensor masked;
  if (drops()) masked = dropped(Operand{probabilities}, Phase::backward);
  {
    const Operand p = masked ? reading_last(masked) : Operand{probabilities};
    Op running(worker(), names_.attention, Phase::backward);
    worker().kernels.attention_values_backward(shape(), p.view, std::as_const(d_out).view(),
                                               gradient(running, pass, v()));
    p.read_by(running);
    if (!fused()) consume_unread(running, pass, v());
  }
  Op running(worker(), names_.probabilities_grad, Phase::backward);
  Tensor d_p = running.make(names_.probabilities_grad, Category::temporaries, probabilities.dtype,
                            probabilities.shape);
  worker().kernels.attention_probabilities_backward(shape(), std::as_const(d_out).view(),
                                                    in(pass.saved, v()), d_p.view());
  running.consume(std::move(d_out));
  if (!fused()) consume(running, pass.saved, v());
  return d_p;
}

// Scratch -----------------------------------------------------------------------------------------

// Of one (sequence, key head), in fp32 for each query; and of as many groups as go together.
Bytes AttentionModule::flash_group_scratch() const {
  const models::Decoder& d = settings().decoder;
  std::int64_t columns = 1;  // row sums
  if (worker().regime.compute != DType::fp32) columns += d.head_dim;
  // Two columns of 16 bits, of dK and dV, are one of fp32.
  if (flash_for_library() && d.heads != d.kv_heads) columns += d.head_dim;
  const std::int64_t queries = checked_multiply(d.heads / d.kv_heads, worker().length);
  return storage(Count(checked_multiply(queries, columns)), DType::fp32);
}
Bytes AttentionModule::flash_scratch() const {
  const std::int64_t all = checked_multiply(worker().sequences, settings().decoder.kv_heads);
  const Bytes group = flash_group_scratch();
  const std::int64_t fit = models::decisions::kAttentionWorkspace.value() / group.value();
  const Bytes groups = group * std::clamp<std::int64_t>(fit, 1, all);
  return flash_for_library() ? groups + models::decisions::kAttentionPadding : groups;
}

}  // namespace

std::unique_ptr<LayerModule> attention_module(LayerContext& context, std::size_t at) {
  return std::make_unique<AttentionModule>(context, at);
}

}  // namespace plimsoll::runtime
