// Attention with its products: flash, or with the matrix stored (eager, math).
#pragma once

#include "runtime/modules/linear.h"
#include "runtime/modules/norm.h"
#include "runtime/modules/settings.h"
#include "runtime/modules/sites.h"

namespace plimsoll::runtime {

// GPT-2: q holds q, k and v side by side.
struct AttentionSaved {
  Tensor q_input, q_statistics, k_input, k_statistics;  // of the head norms
  Tensor q, k, v;
  Tensor out, logsumexp, probabilities;
  Tensor q_adapter, k_adapter, v_adapter, o_adapter;
};
struct AttentionGradients {
  Tensor q, k, v;
};

class Attention {
 public:
  Attention(Worker& worker, const ModelSettings& settings, const LayerParameters& parameters,
            std::int64_t index, ConstTensorView rotary_table);

  // From the normalized stream to o_proj's result.
  Tensor forward(Operand normalized, const Wants& wants, AttentionSaved& saved);
  // From the gradient of o_proj's result to those of the products of the normalized stream.
  AttentionGradients backward(Gradient d_y, AttentionSaved& saved, const Wants& wants);
  // Gradients of those products' parameters, and the normalized stream's, or none.
  Tensor backward_products(AttentionGradients d, Operand normalized, AttentionSaved& saved,
                           const Wants& wants);
  Bytes workspace(const Wants& wants) const;

 private:
  struct Heads {
    Tensor q, k, v;
  };
  kernels::ConstColumns columns(const Tensor& q, const Tensor& own, std::int64_t part) const;
  kernels::Columns columns(Tensor& q, Tensor& own, std::int64_t part) const;
  Heads project(Operand normalized, const Wants& wants, AttentionSaved& saved);
  void normalize(Norm& norm, Tensor& x, const NormWants& wants, Tensor& input, Tensor& statistics);
  void rotate(Tensor& q, Tensor& k, bool backward, bool turns_q, bool turns_k);
  Tensor attend(Heads heads, const Wants& wants, AttentionSaved& saved);
  Tensor attend_flash(Heads& heads, const Wants& wants, AttentionSaved& saved);
  Tensor attend_stored(Heads& heads, const Wants& wants, AttentionSaved& saved);
  Tensor probabilities(const Tensor& q, const Tensor& k, models::Phase phase);
  Tensor dropped(Operand probabilities, models::Phase phase);
  AttentionGradients make_gradients(Op& op, bool with_values_only);
  AttentionGradients backward_flash(Tensor d_out, AttentionSaved& saved);
  AttentionGradients backward_stored(Tensor d_out, AttentionSaved& saved);
  void backward_heads(AttentionGradients& d, AttentionSaved& saved, const Wants& wants);
  kernels::AttentionShape shape() const;
  kernels::Dropout dropout() const;
  bool flash() const { return settings_.attention == models::Attention::flash; }
  bool fused() const { return settings_.decoder.fused_qkv; }

  Worker& worker_;
  const ModelSettings& settings_;
  std::int64_t index_;
  ConstTensorView rotary_table_;
  const models::decisions::LayerNames& names_;
  Norm q_norm_, k_norm_;
  Linear q_, k_, v_, o_;
};

}  // namespace plimsoll::runtime
