// The MLP: silu(gate) · up, or an activation of one product, between two products.
#pragma once

#include "runtime/modules/linear.h"
#include "runtime/modules/settings.h"

namespace plimsoll::runtime {

// GPT-2: c_fc is up, and there is no gate.
struct MlpSaved {
  Tensor gate, up;  // after backward their gradients
  Tensor product;  // where gate and up are not wanted; in the place of one of them
  Tensor gate_adapter, up_adapter, down_adapter;
};

class Mlp {
 public:
  Mlp(Worker& worker, const ModelSettings& settings, const models::decisions::LayerNames& names,
      const LayerParameters& parameters, std::int64_t index);

  // From the normalized stream to down_proj's result. `to_last_saved`: to the last value that
  // backward reads; returns none.
  Tensor forward(Operand normalized, const Wants& wants, bool to_last_saved, MlpSaved& saved);
  // From the gradient of down_proj's result to those of gate and up, in their place.
  void backward(Gradient d_y, MlpSaved& saved, const Wants& wants);
  // Gradients of gate's and up's parameters, and the normalized stream's, or none.
  Tensor backward_products(Operand normalized, MlpSaved& saved, const Wants& wants);
  Bytes workspace(const Wants& wants) const;

 private:
  Tensor activate(Tensor& gate, Tensor& up, bool keeps);
  void backward_activation(Tensor& d_product, MlpSaved& saved, const Wants& wants);

  Worker& worker_;
  const ModelSettings& settings_;
  const models::decisions::LayerNames& names_;
  Linear gate_, up_, down_;
};

}  // namespace plimsoll::runtime
