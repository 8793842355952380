// Activations, SwiGLU, dropout and the sum into the residual stream.
//
// Thread mapping: elementwise (kernels/device/elementwise.cuh).
// Memory: forward reads 1 (SwiGLU 2) and writes 1 element, backward reads and writes 2 (SwiGLU 3);
// the residual sum reads 2 and writes 1.
// Numerics: fp32, rounded once. tanhf, erff and expf of CUDA are within 2 ulp (CUDA programming
// guide, mathematical functions), so results may differ from the host's in the last bit; dropout
// and sums do not.
#include <numbers>

#include "kernels/cuda/elementwise.h"
#include "kernels/device/dropper.cuh"

namespace plimsoll::kernels::cuda {

namespace {

using device::Dropper;
using device::Nothing;

struct ValueAndSlope {
  float value, slope;
};

__device__ ValueAndSlope gelu_tanh(float x) {
  constexpr float a = 0.7978845608f, b = 0.044715f;  // a = sqrt(2 / pi)
  const float t = tanhf(a * (x + b * x * x * x));
  return {0.5f * x * (1 + t), 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * a * (1 + 3 * b * x * x)};
}
__device__ ValueAndSlope gelu_erf(float x) {
  constexpr float root_half = std::numbers::sqrt2_v<float> / 2;
  const float below = 0.5f * (1 + erff(x * root_half));
  const float density =
      0.5f * root_half * 2 * std::numbers::inv_sqrtpi_v<float> * expf(-0.5f * x * x);
  return {x * below, below + x * density};
}
__device__ ValueAndSlope relu(float x) {
  return {x <= 0 ? 0 : x, x > 0 ? 1.0f : 0.0f};  // NaN stays
}
__device__ ValueAndSlope silu(float x) {
  const float s = 1 / (1 + expf(-x));
  return {x * s, s * (1 + x * (1 - s))};
}

struct Act {
  using State = Nothing;
  Activation kind;
  __device__ ValueAndSlope at(float x) const {
    if (kind == Activation::gelu_tanh) return gelu_tanh(x);
    if (kind == Activation::gelu_erf) return gelu_erf(x);
    if (kind == Activation::silu) return silu(x);
    return relu(x);
  }
};
struct Forward : Act {
  __device__ void operator()(State&, std::int64_t, const float* in, float* out) const {
    out[0] = at(in[0]).value;
  }
};
struct Backward : Act {
  __device__ void operator()(State&, std::int64_t, const float* in, float* out) const {
    const ValueAndSlope f = at(in[0]);
    out[0] = in[1] * f.slope;
    out[1] = f.value;
  }
};
struct GatedForward : Act {
  __device__ void operator()(State&, std::int64_t, const float* in, float* out) const {
    out[0] = in[1] * at(in[0]).value;
  }
};
struct GatedBackward : Act {
  __device__ void operator()(State&, std::int64_t, const float* in, float* out) const {
    const ValueAndSlope f = at(in[0]);
    const float up = in[1], d = in[2];
    out[0] = d * up * f.slope;
    out[1] = d * f.value;
    out[2] = up * f.value;
  }
};
struct ResidualAdd {
  using State = Dropper::State;
  Dropper drop;
  __device__ void operator()(State& state, std::int64_t i, const float* in, float* out) const {
    out[0] = drop(state, i, in[1]) + in[0];
  }
};
struct Drop {
  using State = Dropper::State;
  Dropper drop;
  __device__ void operator()(State& state, std::int64_t i, const float* in, float* out) const {
    out[0] = drop(state, i, in[0]);
  }
};
struct DropAndAdd {
  using State = Dropper::State;
  Dropper drop;
  __device__ void operator()(State& state, std::int64_t i, const float* in, float* out) const {
    out[0] = drop(state, i, in[0]) + in[1];
  }
};

void activation_forward(Activation kind, ConstTensorView x, TensorView p) {
  expect(p.elements() == x.elements(), "activation_forward", "p is as large as x");
  start_elementwise("activation_forward", Forward{{kind}}, x.elements(), {x}, {p});
}

void activation_backward(Activation kind, TensorView x, TensorView d_p) {
  expect(d_p.elements() == x.elements(), "activation_backward", "d_p is as large as x");
  start_elementwise("activation_backward", Backward{{kind}}, x.elements(), {x, d_p}, {x, d_p});
}

void gated_forward(Activation kind, ConstTensorView gate, ConstTensorView up, TensorView p) {
  expect(gate.elements() == up.elements() && p.elements() == up.elements(), "gated_forward",
         "gate, up and p are equally large");
  start_elementwise("gated_forward", GatedForward{{kind}}, up.elements(), {gate, up}, {p});
}

void gated_backward(Activation kind, TensorView gate, TensorView up, TensorView d_p) {
  expect(gate.elements() == up.elements() && d_p.elements() == up.elements(), "gated_backward",
         "gate, up and d_p are equally large");
  start_elementwise("gated_backward", GatedBackward{{kind}}, up.elements(), {gate, up, d_p},
                    {gate, up, d_p});
}

void residual_add(ConstTensorView x, const Dropout& dropout, TensorView y) {
  expect(x.elements() == y.elements(), "residual_add", "x is as large as y");
  start_elementwise("residual_add", ResidualAdd{dropper_of(dropout)}, y.elements(), {x, y}, {y});
}

void dropout_op(ConstTensorView x, const Dropout& dropout, bool accumulate, TensorView y) {
  expect(x.elements() == y.elements(), "dropout", "x is as large as y");
  if (accumulate)
    start_elementwise("dropout", DropAndAdd{dropper_of(dropout)}, y.elements(), {x, y}, {y});
  else
    start_elementwise("dropout", Drop{dropper_of(dropout)}, y.elements(), {x}, {y});
}

}  // namespace

void add_activations(KernelTable& table) {
  table.activation_forward = activation_forward;
  table.activation_backward = activation_backward;
  table.gated_forward = gated_forward;
  table.gated_backward = gated_backward;
  table.residual_add = residual_add;
  table.dropout = dropout_op;
}

}  // namespace plimsoll::kernels::cuda
