#include "runtime/modules/layer.h"

#include <algorithm>

namespace plimsoll::runtime {

namespace {

const models::decisions::LayerNames& names_of(const models::Decoder& decoder) {
  return decoder.fused_qkv ? models::decisions::kGpt2Names : models::decisions::kLlamaNames;
}

}  // namespace

Layer::Layer(Worker& worker, const ModelSettings& settings, const LayerParameters& parameters,
             std::int64_t index, ConstTensorView rotary_table)
    : worker_(worker),
      settings_(settings),
      index_(index),
      names_(names_of(settings.decoder)),
      input_norm_(worker, names_.input_norm, parameters.input_norm, settings.decoder.norm,
                  settings.norm_eps),
      post_norm_(worker, names_.post_norm, parameters.post_norm, settings.decoder.norm,
                 settings.norm_eps),
      attention_(worker, settings, names_, parameters, index, rotary_table),
      mlp_(worker, settings, names_, parameters, index) {}

kernels::Dropout Layer::dropout(Site site) const {
  return dropout_at(worker_, settings_.decoder.residual_dropout, stream_of(index_, site),
                    checked_multiply(worker_.length, settings_.decoder.hidden));
}

// Forward -----------------------------------------------------------------------------------------

Tensor Layer::forward(Tensor& x, bool consume_x, const Wants& wants, bool last_of_checkpoint,
                      LayerSaved& saved) {
  if (last_of_checkpoint && !wants.saves()) return {};
  // A norm's output goes away only where its input is there for the norm's own backward.
  const auto keeps = [&](bool read, const NormWants& norm) {
    return read && (settings_.keeps.norm_outputs || !norm.any());
  };
  Tensor n = input_norm_.forward(reading(std::as_const(x)),
                                 wants.input_norm.any() ? &saved.input_statistics : nullptr);
  const bool keeps_n = keeps(wants.reads_normalized(), wants.input_norm);
  Tensor m = attention_.forward(reading(n, !keeps_n), wants, saved.attention);
  saved.normalized = std::move(n);
  {
    Op op(worker_, names_.attention_residual);
    worker_.kernels.residual_add(x.view(), dropout(Site::between), m.view());
    if (consume_x) op.consume(std::move(x));
  }

  const bool keeps_m = wants.post_norm.any();
  Tensor n2 = post_norm_.forward(reading(m, last_of_checkpoint && !keeps_m),
                                 keeps_m ? &saved.post_statistics : nullptr);
  const bool keeps_n2 = keeps(wants.reads_post_normalized(), wants.post_norm);
  Tensor y = mlp_.forward(reading(n2, !keeps_n2), wants, last_of_checkpoint, saved.mlp);
  saved.post_normalized = std::move(n2);
  if (!last_of_checkpoint) {
    Op op(worker_, names_.residual);
    worker_.kernels.residual_add(m.view(), dropout(Site::residual), y.view());
    if (!keeps_m) op.consume(std::move(m));
  }
  saved.between = std::move(m);
  return y;
}

// Backward ----------------------------------------------------------------------------------------

void Layer::backward(Tensor x, Tensor& d, LayerSaved saved, const Wants& wants) {
  if (!wants.any()) return;
  backward_mlp(d, saved, wants);
  if (wants.between) backward_attention(x, d, saved, wants);
}

Gradient Layer::branch(Tensor& d, bool keeps_d, Site site) {
  if (settings_.decoder.residual_dropout > 0) {
    Op op(worker_, names_.residual_dropout, Phase::backward);
    Tensor masked = op.make(names_.residual_dropout_out, Category::temporaries, d.view().shape);
    worker_.kernels.dropout(d.view(), dropout(site), false, masked.view());
    if (!keeps_d) op.consume(std::move(d));
    return Gradient::of(std::move(masked));
  }
  if (!keeps_d) return Gradient::of(std::move(d));
  return {{}, d.view()};
}

void Layer::backward_mlp(Tensor& d, LayerSaved& saved, const Wants& wants) {
  mlp_.backward(branch(d, wants.between, Site::residual), saved.mlp, wants);
  if (!wants.activation) return;
  if (wants.reads_post_normalized() && !saved.post_normalized)
    saved.post_normalized = post_norm_.again(saved.between.view(), saved.post_statistics.view());
  Tensor d_n = mlp_.backward_products(reading_last(saved.post_normalized), saved.mlp, wants);
  if (wants.post_norm.any())
    post_norm_.backward(reading_last(saved.between), std::move(saved.post_statistics),
                        std::move(d_n), d.view(), wants.post_norm);
}

void Layer::backward_attention(Tensor& x, Tensor& d, LayerSaved& saved, const Wants& wants) {
  Heads heads = attention_.backward(branch(d, wants.below, Site::between), saved.attention, wants);
  if (!wants.attention) return;
  if (wants.reads_normalized() && !saved.normalized)
    saved.normalized = input_norm_.again(x.view(), saved.input_statistics.view());
  Tensor d_n = attention_.backward_products(std::move(heads), reading_last(saved.normalized),
                                            saved.attention, wants);
  if (wants.input_norm.any())
    input_norm_.backward(reading_last(x), std::move(saved.input_statistics), std::move(d_n),
                         d.view(), wants.input_norm);
}

Bytes Layer::workspace(const Wants& wants) const {
  return std::max({input_norm_.workspace(wants.input_norm), post_norm_.workspace(wants.post_norm),
                   attention_.workspace(wants), mlp_.workspace(wants)});
}

}  // namespace plimsoll::runtime
