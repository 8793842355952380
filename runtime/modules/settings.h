// What every module of a model needs to know beside its own parameters.
#pragma once

#include "kernels/kernel_table.h"
#include "models/decisions/layer.h"
#include "models/decoder.h"
#include "models/run_spec.h"

namespace plimsoll::runtime {

struct ModelSettings {
  models::Decoder decoder;
  float norm_eps = 1e-5f;
  kernels::RotaryFrequencies rotary;
  float attention_scale = 1;  // of q · k
  kernels::Activation activation = kernels::Activation::gelu_tanh;  // of an MLP without a gate
  models::decisions::Keeps keeps;
  models::Attention attention = models::Attention::flash;
  models::Loss loss = models::Loss::full;

  bool gated() const { return decoder.mlp == models::MlpKind::swiglu; }
  bool rotates() const { return decoder.position == models::PositionKind::rope; }
};

// Of a gated MLP too, which does not read it.
constexpr kernels::Activation activation_of(models::MlpKind mlp) {
  if (mlp == models::MlpKind::gelu) return kernels::Activation::gelu_erf;
  if (mlp == models::MlpKind::relu) return kernels::Activation::relu;
  return kernels::Activation::gelu_tanh;
}

}  // namespace plimsoll::runtime
