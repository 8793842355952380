// Elementwise ops of a layer.
#include <numbers>

#include "kernels/host/blocks.h"

namespace plimsoll::kernels::host {

namespace {

struct ValueAndSlope {
  float value, slope;
};

ValueAndSlope gelu_tanh(float x) {
  constexpr float a = 0.7978845608f, b = 0.044715f;  // a = sqrt(2 / pi)
  const float t = std::tanh(a * (x + b * x * x * x));
  return {0.5f * x * (1 + t), 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * a * (1 + 3 * b * x * x)};
}
ValueAndSlope gelu_erf(float x) {
  constexpr float root_half = std::numbers::sqrt2_v<float> / 2;
  const float below = 0.5f * (1 + std::erf(x * root_half));
  const float density =
      0.5f * root_half * 2 * std::numbers::inv_sqrtpi_v<float> * std::exp(-0.5f * x * x);
  return {x * below, below + x * density};
}
ValueAndSlope relu(float x) {
  return {x > 0 || std::isnan(x) ? x : 0, x > 0 ? 1.0f : 0.0f};
}
ValueAndSlope silu(float x) {
  const float s = 1 / (1 + std::exp(-x));
  return {x * s, s * (1 + x * (1 - s))};
}
ValueAndSlope activation(Activation kind, float x) {
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

void activation_forward(Activation kind, ConstTensorView x, TensorView p) {
  expect(p.elements() == x.elements(), "activation_forward", "p is as large as x");
  in_blocks(x.elements(), [&](std::int64_t first, std::int64_t n) {
    float v[kBlock];
    read(x, first, n, v);
    for (std::int64_t i = 0; i < n; ++i) v[i] = activation(kind, v[i]).value;
    write(v, first, n, p);
  });
}

void activation_backward(Activation kind, TensorView x, TensorView d_p) {
  expect(d_p.elements() == x.elements(), "activation_backward", "d_p is as large as x");
  in_blocks(x.elements(), [&](std::int64_t first, std::int64_t n) {
    float v[kBlock], d[kBlock];
    read(x, first, n, v);
    read(d_p, first, n, d);
    for (std::int64_t i = 0; i < n; ++i) {
      const ValueAndSlope f = activation(kind, v[i]);
      v[i] = d[i] * f.slope;
      d[i] = f.value;
    }
    write(v, first, n, x);
    write(d, first, n, d_p);
  });
}

void gated_forward(Activation kind, ConstTensorView gate, ConstTensorView up, TensorView p) {
  expect(gate.elements() == up.elements() && p.elements() == up.elements(), "gated_forward",
         "gate, up and p are equally large");
  in_blocks(up.elements(), [&](std::int64_t first, std::int64_t n) {
    float g[kBlock], u[kBlock];
    read(gate, first, n, g);
    read(up, first, n, u);
    for (std::int64_t i = 0; i < n; ++i) u[i] *= activation(kind, g[i]).value;
    write(u, first, n, p);
  });
}

void gated_backward(Activation kind, TensorView gate, TensorView up, TensorView d_p) {
  expect(gate.elements() == up.elements() && d_p.elements() == up.elements(), "gated_backward",
         "gate, up and d_p are equally large");
  in_blocks(up.elements(), [&](std::int64_t first, std::int64_t n) {
    float g[kBlock], u[kBlock], d[kBlock];
    read(gate, first, n, g);
    read(up, first, n, u);
    read(d_p, first, n, d);
    for (std::int64_t i = 0; i < n; ++i) {
      const ValueAndSlope f = activation(kind, g[i]);
      g[i] = d[i] * u[i] * f.slope;
      const float product = u[i] * f.value;
      u[i] = d[i] * f.value;
      d[i] = product;
    }
    write(g, first, n, gate);
    write(u, first, n, up);
    write(d, first, n, d_p);
  });
}

void residual_add(ConstTensorView x, const Dropout& dropout, TensorView y) {
  expect(x.elements() == y.elements(), "residual_add", "x is as large as y");
  in_blocks(y.elements(), [&](std::int64_t first, std::int64_t n) {
    float v[kBlock], old[kBlock];
    read(y, first, n, v);
    read(x, first, n, old);
    drop(dropout, first, n, v);
    add_scaled(1, old, n, v);
    write(v, first, n, y);
  });
}

void dropout_op(ConstTensorView x, const Dropout& dropout, bool accumulate, TensorView y) {
  expect(x.elements() == y.elements(), "dropout", "x is as large as y");
  in_blocks(y.elements(), [&](std::int64_t first, std::int64_t n) {
    float v[kBlock], old[kBlock];
    read(x, first, n, v);
    drop(dropout, first, n, v);
    if (accumulate) {
      read(y, first, n, old);
      add_scaled(1, old, n, v);
    }
    write(v, first, n, y);
  });
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

}  // namespace plimsoll::kernels::host
