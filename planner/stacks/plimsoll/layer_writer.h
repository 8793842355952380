// Writes the layers of our own runtime's step, op by op, as models/decisions/layer.h decides.
#pragma once

#include <array>

#include "models/decisions/layer.h"
#include "models/decisions/names.h"
#include "models/decisions/precision.h"
#include "planner/program/program_builder.h"
#include "planner/stacks/plimsoll/layer_slots.h"

namespace plimsoll::planner::own {

using models::Category;
using models::kNoTensor;
using models::Phase;
using models::TensorId;
using models::decisions::LayerNames;
using models::decisions::LinearNames;
using models::decisions::NormNames;
using models::decisions::Regime;

// A tensor, or the neighbouring layer's.
struct Ref {
  TensorId tensor = kNoTensor;
  int delta = 0;
  TensorId beyond = kNoTensor;
};

// Sizes of one micro-batch.
struct Tokens {
  std::int64_t sequences = 1, length = 1;
  std::int64_t total() const { return checked_multiply(sequences, length); }
};

inline bool trains(const LinearPart& part) {
  return part.in > 0 && part.trains();
}
inline bool reads_input(const LinearPart& part) {  // for its own or its adapter's gradient
  return part.in > 0 && (part.train_weight || part.lora_rank > 0);
}

// The gradients that a layer's backward computes; each implies those after it.
struct Wants {
  bool input = false;  // of the layer's input
  bool input_norm = false;  // of the first norm's result
  bool attention = false;  // of q, k and v
  bool middle = false;  // of the stream between attention and MLP
  bool post_norm = false;  // of the second norm's result
  bool hidden = false;  // of gate and up
  bool any = false;
};
Wants wants_of(const LayerSlots& layer, bool input_grad);

// What one layer's forward leaves to its backward.
struct LayerTensors {
  TensorId n1 = kNoTensor, statistics1 = kNoTensor, n2 = kNoTensor, statistics2 = kNoTensor;
  TensorId q_in = kNoTensor, k_in = kNoTensor;  // before their norms
  TensorId q_statistics = kNoTensor, k_statistics = kNoTensor;
  TensorId q = kNoTensor, k = kNoTensor, v = kNoTensor;  // GPT-2: q holds all three
  TensorId attention = kNoTensor, logsumexp = kNoTensor, probabilities = kNoTensor;
  TensorId middle = kNoTensor, gate = kNoTensor, up = kNoTensor, product = kNoTensor;
  // x · A of each adapter.
  TensorId q_a = kNoTensor, k_a = kNoTensor, v_a = kNoTensor, o_a = kNoTensor, gate_a = kNoTensor,
           up_a = kNoTensor, down_a = kNoTensor;
};

class LayerWriter {
 public:
  LayerWriter(ProgramBuilder& builder, const models::Decoder& decoder, const Regime& regime,
              const models::Strategy& strategy, Tokens tokens);

  // One layer: reads `input`, writes `output`. `wants`: what its backward will compute; nothing
  // where that will find nothing saved. `last_of_checkpoint`: what the recomputation may leave out.
  void forward(Phase phase, const LayerSlots& layer, const Wants& wants, Ref input, TensorId output,
               bool last_of_checkpoint, LayerTensors& t);
  // Turns `d`, the gradient of the stream after the layer, into the one before it, and writes into
  // `gradients`, those of the layer's parameters.
  void backward(const LayerSlots& layer, const Wants& wants, Ref input, TensorId d,
                TensorId gradients, const LayerTensors& t);

  void set_tokens(Tokens tokens) { total_ = (tokens_ = tokens).total(); }
  const LayerNames& names() const { return n_; }
  // Of all tokens of the micro-batch.
  Bytes bytes(std::int64_t width, DType dtype) const {
    return storage(Count(checked_multiply(total_, width)), dtype);
  }
  TensorId make(const char* name, std::int64_t width, Category category = Category::activations) {
    return b_.tensor(name, bytes(width, regime_.compute), category);
  }
  TensorId make_statistics(const char* name, std::int64_t width) {
    return b_.tensor(name, bytes(width, models::decisions::kStatistics), Category::activations);
  }
  TensorId temporary(const char* name, std::int64_t width) {
    return make(name, width, Category::temporaries);
  }

 private:
  OpBuilder op(const char* name) { return b_.op(name, phase_); }
  TensorId norm(const NormNames& names, Ref input, std::int64_t width, TensorId statistics);
  TensorId norm_again(const NormNames& names, Ref input, TensorId statistics);
  void norm_backward(const NormNames& names, const NormPart& part, Ref input, TensorId statistics,
                     TensorId d_out, TensorId d);

  // Products (linear.cpp).
  void gemm(std::int64_t m, std::int64_t n, std::int64_t k);
  TensorId product(const LinearNames& names, const LinearPart& part, TensorId in, TensorId out,
                   TensorId& a_out);
  TensorId adapter_a(const LinearNames& names, const LinearPart& part, TensorId in);
  TensorId drop_input(const LinearNames& names, const LinearPart& part, TensorId in);
  TensorId adapter_gradient(const LinearNames& names, const LinearPart& part, TensorId d_out,
                            TensorId a_out);
  void weight_gradient(const LinearNames& names, const LinearPart& part, TensorId in,
                       TensorId d_out, TensorId d_a);
  void input_gradient(const LinearNames& names, const LinearPart& part, TensorId d_out,
                      TensorId d_a, TensorId d_in);

  // Attention (attention.cpp).
  void qkv(const LayerSlots& layer, const Wants& wants, LayerTensors& t);
  TensorId head_norm(const NormNames& names, const NormPart& part, bool saves, TensorId in,
                     std::int64_t heads, TensorId& statistics);
  void attention(const Wants& wants, LayerTensors& t);
  TensorId attention_matrix(const LayerTensors& t, bool again);
  TensorId drop_matrix(TensorId probabilities);
  std::array<TensorId, 3> attention_backward(const LayerTensors& t, TensorId d_out);
  void qkv_backward(const LayerSlots& layer, const Wants& wants, Ref input, TensorId d,
                    const LayerTensors& t, std::array<TensorId, 3> d_qkv);
  Bytes matrix_bytes() const;
  Gemm of_scores() const, of_rows() const;
  double fused_flops() const;

  void mlp(const LayerSlots& layer, const Wants& wants, TensorId output, bool last,
           LayerTensors& t);
  void mlp_backward(const LayerSlots& layer, const Wants& wants, TensorId d, const LayerTensors& t);
  TensorId branch(TensorId d);

  ProgramBuilder& b_;
  const models::Decoder& d_;
  const Regime& regime_;
  const LayerNames& n_;
  models::decisions::Keeps keeps_;
  models::Attention attention_kind_;
  double adapter_dropout_;
  Tokens tokens_;
  std::int64_t total_;
  Phase phase_ = Phase::forward;
  TensorId gradients_ = kNoTensor;
};

}  // namespace plimsoll::planner::own
