// Attention with its products: flash, or with the matrix stored (eager, math).
#pragma once

#include "runtime/modules/linear.h"
#include "runtime/modules/norm.h"
#include "runtime/modules/settings.h"

namespace plimsoll::runtime {

// GPT-2: q holds q, k and v side by side; k and v are none. So for their gradients.
struct Heads {
  Tensor q, k, v;
};
struct AttentionSaved {
  Tensor q_input, q_statistics, k_input, k_statistics;  // of the head norms
  Heads heads;
  Tensor out, logsumexp, probabilities;
  Tensor q_adapter, k_adapter, v_adapter, o_adapter;
};

class Attention {
 public:
  Attention(Worker& worker, const ModelSettings& settings,
            const models::decisions::LayerNames& names, const LayerParameters& parameters,
            std::int64_t index, ConstTensorView rotary_table);

  // From the normalized stream to o_proj's result.
  Tensor forward(Operand normalized, const Wants& wants, AttentionSaved& saved);
  // From the gradient of o_proj's result to those of the products of the normalized stream.
  Heads backward(Gradient d_y, AttentionSaved& saved, const Wants& wants);
  // Gradients of those products' parameters, and the normalized stream's, or none.
  Tensor backward_products(Heads d, Operand normalized, AttentionSaved& saved, const Wants& wants);
  Bytes workspace(const Wants& wants) const;

 private:
  // Forward.
  Heads project(Operand normalized, const Wants& wants, AttentionSaved& saved);
  void normalize(Norm& norm, Tensor& x, const NormWants& wants, Tensor& input, Tensor& statistics);
  Tensor attend_flash(Heads heads, const Wants& wants, AttentionSaved& saved);
  Tensor attend_stored(Heads heads, const Wants& wants, AttentionSaved& saved);
  // The matrix; where `dies`, q and k do with it.
  Tensor probabilities(Heads& heads, bool dies, Phase phase);
  Tensor dropped(Operand probabilities, Phase phase);

  // Backward.
  Heads backward_flash(Tensor d_out, AttentionSaved& saved, const Wants& wants);
  Heads backward_stored(Tensor d_out, AttentionSaved& saved, const Wants& wants);
  Tensor backward_values(Tensor d_out, AttentionSaved& saved, Heads& d, const Wants& wants);
  void backward_heads(Heads& d, AttentionSaved& saved, const Wants& wants);
  void make_gradients(Op& op, Heads& d, bool q_and_k, bool v);
  void consume_unread(Op& op, Heads& d, const Wants& wants);
  void rotate(Heads& heads, bool backward);

  // q, k or v, wherever they lie.
  enum Part : std::uint8_t { kQ, kK, kV };
  kernels::Columns columns(Heads& heads, Part part) const;
  kernels::AttentionShape shape() const;
  kernels::Dropout dropout() const;
  bool flash_for_library() const;
  Bytes flash_group_scratch() const;
  Bytes flash_scratch() const;
  bool flash() const { return settings_.attention == models::Attention::flash; }
  bool fused() const { return settings_.decoder.fused_qkv; }

  Worker& worker_;
  const ModelSettings& settings_;
  const models::decisions::LayerNames& names_;
  std::int64_t index_;
  ConstTensorView rotary_table_;
  Norm q_norm_, k_norm_;
  Linear q_, k_, v_, o_;
};

}  // namespace plimsoll::runtime
