// Activations and their slopes, in fp32. tanhf, erff and expf of CUDA are within 2 ulp (CUDA
// programming guide, mathematical functions).
#pragma once

#include <numbers>
#include <type_traits>

#include "kernels/device/elementwise.cuh"
#include "kernels/layer_kernels.h"

namespace plimsoll::kernels::device {

struct ValueAndSlope {
  float value, slope;
};

__device__ __forceinline__ ValueAndSlope gelu_tanh(float x) {
  constexpr float a = 0.7978845608f, b = 0.044715f;  // a = sqrt(2 / pi)
  const float t = tanhf(a * (x + b * x * x * x));
  return {0.5f * x * (1 + t), 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * a * (1 + 3 * b * x * x)};
}
__device__ __forceinline__ ValueAndSlope gelu_erf(float x) {
  constexpr float root_half = std::numbers::sqrt2_v<float> / 2;
  const float below = 0.5f * (1 + erff(x * root_half));
  const float density =
      0.5f * root_half * 2 * std::numbers::inv_sqrtpi_v<float> * expf(-0.5f * x * x);
  return {x * below, below + x * density};
}
__device__ __forceinline__ ValueAndSlope relu(float x) {
  return {x <= 0 ? 0 : x, x > 0 ? 1.0f : 0.0f};  // NaN stays
}
__device__ __forceinline__ ValueAndSlope silu(float x) {
  const float s = 1 / (1 + expf(-x));
  return {x * s, s * (1 + x * (1 - s))};
}

// One of them: which it is, is the kernel's own, because a branch for each element would keep their
// functions from being under way at once.
template <Activation kKind>
struct Act {
  using State = Nothing;
  static __device__ __forceinline__ ValueAndSlope at(float x) {
    if constexpr (kKind == Activation::gelu_tanh)
      return gelu_tanh(x);
    else if constexpr (kKind == Activation::gelu_erf)
      return gelu_erf(x);
    else if constexpr (kKind == Activation::silu)
      return silu(x);
    else
      return relu(x);
  }
};

// start(std::integral_constant of the activation).
template <class Start>
void with_activation(Activation kind, Start start) {
  switch (kind) {
    case Activation::gelu_tanh:
      return start(std::integral_constant<Activation, Activation::gelu_tanh>{});
    case Activation::gelu_erf:
      return start(std::integral_constant<Activation, Activation::gelu_erf>{});
    case Activation::relu:
      return start(std::integral_constant<Activation, Activation::relu>{});
    case Activation::silu:
      return start(std::integral_constant<Activation, Activation::silu>{});
  }
}

}  // namespace plimsoll::kernels::device
