#include "runtime/modules/attention.h"

#include <algorithm>

#include "models/decisions/workspace.h"
#include "runtime/modules/sites.h"

namespace plimsoll::runtime {

Attention::Attention(Worker& worker, const ModelSettings& settings,
                     const models::decisions::LayerNames& names, const LayerParameters& parameters,
                     std::int64_t index, ConstTensorView rotary_table)
    : worker_(worker),
      settings_(settings),
      names_(names),
      index_(index),
      rotary_table_(rotary_table),
      q_norm_(worker, names.q_norm, parameters.q_norm, models::NormKind::rms_norm,
              settings.norm_eps),
      k_norm_(worker, names.k_norm, parameters.k_norm, models::NormKind::rms_norm,
              settings.norm_eps),
      q_(worker, names.q, parameters.q, stream_of(index, Site::q)),
      k_(worker, names.k, parameters.k, stream_of(index, Site::k)),
      v_(worker, names.v, parameters.v, stream_of(index, Site::v)),
      o_(worker, names.o, parameters.o, stream_of(index, Site::o)) {
  check(!fused() || (!k_ && !v_ && !q_norm_ && !k_norm_), ErrorKind::internal,
        "q, k and v in one product have no norms of their own");
}

kernels::AttentionShape Attention::shape() const {
  const models::Decoder& d = settings_.decoder;
  return {.sequences = worker_.sequences,
          .length = worker_.length,
          .heads = d.heads,
          .kv_heads = d.kv_heads,
          .head_dim = d.head_dim,
          .window = d.window,
          .scale = settings_.attention_scale};
}
kernels::Dropout Attention::dropout() const {
  const std::int64_t row = checked_multiply(settings_.decoder.heads, worker_.length);
  return dropout_at(worker_, settings_.decoder.attention_dropout,
                    stream_of(index_, Site::attention), checked_multiply(row, worker_.length));
}

kernels::Columns Attention::columns(Heads& heads, Part part) const {
  if (!fused()) return (part == kQ ? heads.q : part == kK ? heads.k : heads.v).view();
  const std::int64_t q = settings_.decoder.q_width(), kv = settings_.decoder.kv_width();
  const std::int64_t first = part == kQ ? 0 : part == kK ? q : q + kv;
  return {heads.q.view(), first, part == kQ ? q : kv};
}

// Forward -----------------------------------------------------------------------------------------

Tensor Attention::forward(Operand normalized, const Wants& wants, AttentionSaved& saved) {
  Heads heads = project(normalized, wants, saved);
  if (q_norm_) normalize(q_norm_, heads.q, wants.q_norm, saved.q_input, saved.q_statistics);
  if (k_norm_) normalize(k_norm_, heads.k, wants.k_norm, saved.k_input, saved.k_statistics);
  if (settings_.rotates()) {
    Op op(worker_, names_.rotary);
    rotate(heads, false);
  }
  Tensor out = flash() ? attend_flash(std::move(heads), wants, saved)
                       : attend_stored(std::move(heads), wants, saved);
  const bool keeps = (flash() && wants.attention) || wants.o.reads_input();
  // The sum of the branch and the stream takes over the result: it has the stream's name.
  Tensor y = o_.forward(reading(out, !keeps), names_.attention_residual, wants.o, saved.o_adapter);
  saved.out = std::move(out);
  return y;
}

Heads Attention::project(Operand normalized, const Wants& wants, AttentionSaved& saved) {
  const Operand first = fused() ? normalized : Operand{normalized.view};
  Heads heads;
  heads.q = q_.forward(first, names_.q.out, wants.q, saved.q_adapter);
  if (fused()) return heads;
  heads.k = k_.forward(first, names_.k.out, wants.k, saved.k_adapter);
  heads.v = v_.forward(normalized, names_.v.out, wants.v, saved.v_adapter);
  return heads;
}

void Attention::normalize(Norm& norm, Tensor& x, const NormWants& wants, Tensor& input,
                          Tensor& statistics) {
  if (!wants.any()) return norm.forward_in_place(x);
  Tensor y = norm.forward(reading(x), &statistics);
  input = std::exchange(x, std::move(y));
}

void Attention::rotate(Heads& heads, bool backward) {
  for (const Part part : {kQ, kK})
    if (fused() || (part == kQ ? heads.q : heads.k))
      worker_.kernels.rotary(rotary_table_, backward, columns(heads, part));
}

Tensor Attention::attend_flash(Heads heads, const Wants& wants, AttentionSaved& saved) {
  Op op(worker_, names_.attention);
  const kernels::AttentionShape s = shape();
  Tensor out = op.make(names_.attention_out, Category::activations,
                       {worker_.tokens(), settings_.decoder.q_width()});
  if (wants.attention)
    saved.logsumexp = op.make(names_.logsumexp, Category::activations,
                              models::decisions::kStatistics, {worker_.tokens(), s.heads});
  worker_.kernels.flash_forward(s, dropout(), columns(heads, kQ), columns(heads, kK),
                                columns(heads, kV), out.view(), saved.logsumexp.view());
  if (wants.attention) {
    saved.heads = std::move(heads);
  } else {
    op.consume(std::move(heads.q));
    op.consume(std::move(heads.k));
    op.consume(std::move(heads.v));
  }
  return out;
}

Tensor Attention::attend_stored(Heads heads, const Wants& wants, AttentionSaved& saved) {
  Tensor p = probabilities(heads, !wants.attention, worker_.phase);
  const bool keeps = wants.attention && settings_.keeps.probabilities;
  Tensor masked;
  if (settings_.decoder.attention_dropout > 0) masked = dropped(reading(p, !keeps), worker_.phase);
  Tensor out;
  {
    Op op(worker_, names_.attention);
    out = op.make(names_.attention_out, Category::activations,
                  {worker_.tokens(), settings_.decoder.q_width()});
    const Operand read = masked ? reading_last(masked) : reading(p, !keeps);
    worker_.kernels.attention_values(shape(), read.view, columns(heads, kV), out.view());
    read.read_by(op);
    if (!wants.attention) op.consume(std::move(fused() ? heads.q : heads.v));
  }
  saved.probabilities = std::move(p);
  saved.heads = std::move(heads);
  return out;
}

Tensor Attention::probabilities(Heads& heads, bool dies, Phase phase) {
  const kernels::AttentionShape s = shape();
  Tensor p;
  {
    Op op(worker_, names_.scores, phase);
    p = op.make(names_.probabilities,
                phase == worker_.phase ? Category::activations : Category::temporaries,
                models::decisions::probabilities_dtype(settings_.attention, worker_.regime.compute),
                {s.sequences, s.heads, s.length, s.length});
    worker_.kernels.attention_scores(s, columns(heads, kQ), columns(heads, kK), p.view());
    if (dies && !fused()) {
      op.consume(std::move(heads.q));
      op.consume(std::move(heads.k));
    }
  }
  Op op(worker_, names_.softmax, phase);
  worker_.kernels.softmax_forward(p.view());
  return p;
}

Tensor Attention::dropped(Operand p, Phase phase) {
  Op op(worker_, names_.attention_dropout, phase);
  Tensor masked =
      op.make(names_.probabilities_dropped, Category::temporaries, p.view.dtype, p.view.shape);
  worker_.kernels.dropout(p.view, dropout(), false, masked.view());
  p.read_by(op);
  return masked;
}

// Backward ----------------------------------------------------------------------------------------

Heads Attention::backward(Gradient d_y, AttentionSaved& saved, const Wants& wants) {
  const bool attention_reads = flash() && wants.attention;
  Tensor d_a = o_.backward_parameters(d_y, reading(saved.out, !attention_reads),
                                      std::move(saved.o_adapter), wants.o);
  if (!wants.attention) return {};
  Tensor d_out;
  o_.backward_input(d_y.read(true), reading_last(d_a), names_.attention_out_grad, d_out);
  Heads d = flash() ? backward_flash(std::move(d_out), saved, wants)
                    : backward_stored(std::move(d_out), saved, wants);
  backward_heads(d, saved, wants);
  return d;
}

void Attention::make_gradients(Op& op, Heads& d, bool q_and_k, bool v) {
  const std::int64_t tokens = worker_.tokens(), q = settings_.decoder.q_width(),
                     kv = settings_.decoder.kv_width();
  const auto make = [&](const char* name, std::int64_t width) {
    return op.make(name, Category::temporaries, {tokens, width});
  };
  if (fused()) {
    if (!d.q) d.q = make(names_.q_grad, q + 2 * kv);
    return;
  }
  if (q_and_k) d.q = make(names_.q_grad, q), d.k = make(names_.k_grad, kv);
  if (v) d.v = make(names_.v_grad, kv);
}

// What attention makes along with the others dies where it is made.
void Attention::consume_unread(Op& op, Heads& d, const Wants& wants) {
  if (fused()) return;
  if (!wants.q.any() && !wants.q_norm.any()) op.consume(std::move(d.q));
  if (!wants.k.any() && !wants.k_norm.any()) op.consume(std::move(d.k));
  if (!wants.v.any()) op.consume(std::move(d.v));
}

Heads Attention::backward_flash(Tensor d_out, AttentionSaved& saved, const Wants& wants) {
  Op op(worker_, names_.attention, Phase::backward);
  Heads d;
  make_gradients(op, d, true, true);
  worker_.kernels.flash_backward(
      shape(), dropout(), d_out.view(), columns(saved.heads, kQ), columns(saved.heads, kK),
      columns(saved.heads, kV), saved.out.view(), saved.logsumexp.view(), columns(d, kQ),
      columns(d, kK), columns(d, kV), worker_.scratch(DType::fp32, {flash_scratch().value() / 4}));
  op.consume(std::move(d_out));
  for (Tensor* read :
       {&saved.heads.q, &saved.heads.k, &saved.heads.v, &saved.out, &saved.logsumexp})
    op.consume(std::move(*read));
  consume_unread(op, d, wants);
  return d;
}

Heads Attention::backward_stored(Tensor d_out, AttentionSaved& saved, const Wants& wants) {
  if (!saved.probabilities)
    saved.probabilities = probabilities(saved.heads, false, Phase::recompute);
  Heads d;
  Tensor d_p = backward_values(std::move(d_out), saved, d, wants);
  {
    Op op(worker_, names_.softmax, Phase::backward);
    worker_.kernels.softmax_backward(saved.probabilities.view(), dropout(), d_p.view());
    op.consume(std::move(saved.probabilities));
  }
  Op op(worker_, names_.scores, Phase::backward);
  make_gradients(op, d, true, false);
  worker_.kernels.attention_scores_backward(shape(), d_p.view(), columns(saved.heads, kQ),
                                            columns(saved.heads, kK), columns(d, kQ),
                                            columns(d, kK));
  op.consume(std::move(d_p));
  op.consume(std::move(saved.heads.q));
  op.consume(std::move(saved.heads.k));
  consume_unread(op, d, wants);
  return d;
}

// The gradients of the matrix, which it returns, and of v.
Tensor Attention::backward_values(Tensor d_out, AttentionSaved& saved, Heads& d,
                                  const Wants& wants) {
  const ConstTensorView probabilities = std::as_const(saved.probabilities).view();
  Tensor masked;
  if (settings_.decoder.attention_dropout > 0)
    masked = dropped(reading(std::as_const(saved.probabilities)), Phase::backward);
  {
    const Operand p = masked ? reading_last(masked) : Operand{probabilities};
    Op op(worker_, names_.attention, Phase::backward);
    make_gradients(op, d, false, true);
    worker_.kernels.attention_values_backward(shape(), p.view, d_out.view(), columns(d, kV));
    p.read_by(op);
    if (!fused() && !wants.v.any()) op.consume(std::move(d.v));
  }
  Op op(worker_, names_.probabilities_grad, Phase::backward);
  Tensor d_p = op.make(names_.probabilities_grad, Category::temporaries, probabilities.dtype,
                       probabilities.shape);
  worker_.kernels.attention_probabilities_backward(shape(), d_out.view(), columns(saved.heads, kV),
                                                   d_p.view());
  op.consume(std::move(d_out));
  op.consume(std::move(saved.heads.v));
  return d_p;
}

void Attention::backward_heads(Heads& d, AttentionSaved& saved, const Wants& wants) {
  if (settings_.rotates() && (d.q || d.k)) {
    Op op(worker_, names_.rotary, Phase::backward);
    rotate(d, true);
  }
  if (wants.k_norm.any())
    k_norm_.backward_in_place(reading_last(saved.k_input), std::move(saved.k_statistics), d.k,
                              wants.k_norm);
  if (wants.q_norm.any())
    q_norm_.backward_in_place(reading_last(saved.q_input), std::move(saved.q_statistics), d.q,
                              wants.q_norm);
}

Tensor Attention::backward_products(Heads heads, Operand normalized, AttentionSaved& saved,
                                    const Wants& wants) {
  struct Product {
    Linear& linear;
    const LinearWants& wants;
    Gradient d_y;
    Tensor a, d_a;
  };
  Product products[] = {
      {q_, wants.q, Gradient::of(std::move(heads.q)), std::move(saved.q_adapter), {}},
      {k_, wants.k, Gradient::of(std::move(heads.k)), std::move(saved.k_adapter), {}},
      {v_, wants.v, Gradient::of(std::move(heads.v)), std::move(saved.v_adapter), {}}};
  const Product* last = nullptr;
  for (const Product& p : products)
    if (p.wants.reads_input()) last = &p;
  for (Product& p : products)
    if (p.wants.any())
      p.d_a = p.linear.backward_parameters(
          p.d_y, &p == last ? normalized : Operand{normalized.view}, std::move(p.a), p.wants);
  Tensor d_normalized;
  for (Product& p : products)
    if (p.wants.input)
      p.linear.backward_input(p.d_y.read(true), reading_last(p.d_a), names_.input_norm.out_grad,
                              d_normalized);
  return d_normalized;
}

// Whether the scratch is laid out for cuDNN too (decisions::kAttentionWorkspace).
bool Attention::flash_for_library() const {
  return worker_.device.kind() == models::Device::cuda && worker_.regime.compute != DType::fp32;
}
// Of one (sequence, key head), in fp32 for each query; and of as many groups as go together.
Bytes Attention::flash_group_scratch() const {
  const models::Decoder& d = settings_.decoder;
  std::int64_t columns = 1;  // row sums
  if (worker_.regime.compute != DType::fp32) columns += d.head_dim;
  // Two columns of 16 bits, of dK and dV, are one of fp32.
  if (flash_for_library()) columns += d.heads == d.kv_heads ? 1 : 1 + d.head_dim;
  const std::int64_t queries = checked_multiply(d.heads / d.kv_heads, worker_.length);
  return storage(Count(checked_multiply(queries, columns)), DType::fp32);
}
Bytes Attention::flash_scratch() const {
  const std::int64_t all = checked_multiply(worker_.sequences, settings_.decoder.kv_heads);
  const Bytes group = flash_group_scratch();
  const std::int64_t fit = models::decisions::kAttentionWorkspace.value() / group.value();
  const Bytes groups = group * std::clamp<std::int64_t>(fit, 1, all);
  return flash_for_library() ? groups + models::decisions::kAttentionPadding : groups;
}

Bytes Attention::workspace(const Wants& wants) const {
  Bytes most = std::max({q_.workspace(wants.q), k_.workspace(wants.k), v_.workspace(wants.v),
                         o_.workspace(wants.o), q_norm_.workspace(wants.q_norm),
                         k_norm_.workspace(wants.k_norm)});
  if (flash() && wants.attention) most = std::max(most, flash_scratch());
  return most;
}

}  // namespace plimsoll::runtime
