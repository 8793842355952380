// Activations and their slopes, in fp32.
#pragma once

#include <cmath>
#include <numbers>

#include "kernels/layer_kernels.h"

namespace plimsoll::kernels::host {

struct ValueAndSlope {
  float value, slope;
};

inline ValueAndSlope gelu_tanh(float x) {
  constexpr float a = 0.7978845608f, b = 0.044715f;  // a = sqrt(2 / pi)
  const float t = std::tanh(a * (x + b * x * x * x));
  return {0.5f * x * (1 + t), 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * a * (1 + 3 * b * x * x)};
}
inline ValueAndSlope gelu_erf(float x) {
  constexpr float root_half = std::numbers::sqrt2_v<float> / 2;
  const float below = 0.5f * (1 + std::erf(x * root_half));
  const float density =
      0.5f * root_half * 2 * std::numbers::inv_sqrtpi_v<float> * std::exp(-0.5f * x * x);
  return {x * below, below + x * density};
}
inline ValueAndSlope relu(float x) {
  return {x > 0 || std::isnan(x) ? x : 0, x > 0 ? 1.0f : 0.0f};
}
inline ValueAndSlope silu(float x) {
  const float s = 1 / (1 + std::exp(-x));
  return {x * s, s * (1 + x * (1 - s))};
}
inline ValueAndSlope activation(Activation kind, float x) {
  switch (kind) {
    case Activation::gelu_tanh:
      return gelu_tanh(x);
    case Activation::gelu_erf:
      return gelu_erf(x);
    case Activation::relu:
      return relu(x);
    case Activation::silu:
      return silu(x);
  }
  return {x, 1};
}

}  // namespace plimsoll::kernels::host
