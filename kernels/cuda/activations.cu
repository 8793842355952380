// Activations, SwiGLU, dropout and the sum into the residual stream.
//
// Thread mapping: elementwise (kernels/device/elementwise.cuh).
// Memory: forward reads 1 (SwiGLU 2) and writes 1 element, backward reads and writes 2 (SwiGLU 3);
// the residual sum reads 2 and writes 1.
// Numerics: fp32, rounded once. tanhf, erff and expf of CUDA are within 2 ulp (CUDA programming
// guide, mathematical functions), so results may differ from the host's in the last bit; dropout
// and sums do not.
#include "kernels/cuda/elementwise.h"
#include "kernels/device/activation.cuh"
#include "kernels/device/dropper.cuh"

namespace plimsoll::kernels::cuda {

namespace {

using device::Act;
using device::Dropper;
using device::kVector;
using device::ValueAndSlope;

template <Activation kKind>
struct Forward : Act<kKind> {
  using Act<kKind>::at;
  __device__ void operator()(device::Nothing&, std::int64_t, const float* in, float* out) const {
    out[0] = at(in[0]).value;
  }
};
template <Activation kKind>
struct Backward : Act<kKind> {
  using Act<kKind>::at;
  __device__ void operator()(device::Nothing&, std::int64_t, const float* in, float* out) const {
    const ValueAndSlope f = at(in[0]);
    out[0] = in[1] * f.slope;
    out[1] = f.value;
  }
};
template <Activation kKind>
struct GatedForward : Act<kKind> {
  using Act<kKind>::at;
  __device__ void operator()(device::Nothing&, std::int64_t, const float* in, float* out) const {
    out[0] = in[1] * at(in[0]).value;
  }
};
template <Activation kKind>
struct GatedBackward : Act<kKind> {
  using Act<kKind>::at;
  __device__ void operator()(device::Nothing&, std::int64_t, const float* in, float* out) const {
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
struct ResidualBackward {
  using State = Dropper::State;
  Dropper drop;
  __device__ void operator()(State& state, std::int64_t i, const float* in, float* out) const {
    out[0] = in[1] + in[0];
    out[1] = drop(state, i, in[0]);
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
  device::with_activation(kind, [&](auto k) {
    start_elementwise("activation_forward", Forward<k()>{}, x.elements(), {x}, {p});
  });
}

void activation_backward(Activation kind, TensorView x, TensorView d_p) {
  expect(d_p.elements() == x.elements(), "activation_backward", "d_p is as large as x");
  device::with_activation(kind, [&](auto k) {
    start_elementwise("activation_backward", Backward<k()>{}, x.elements(), {x, d_p}, {x, d_p});
  });
}

struct GatedColumns {
  Span gate, up, p;
  std::int64_t rows, width, gate_stride, gate_first, up_stride, up_first;
  bool vectors;
};

// Eight columns of a row for each thread; backward: p is d_p.
template <Activation kKind, bool kBackward>
__global__ void __launch_bounds__(kThreads, 4) gated_columns(GatedColumns c) {
  const std::int64_t groups = ceil_divide(c.width, kVector);
  for (std::int64_t i = device::grid_thread(); i < c.rows * groups; i += device::grid_threads()) {
    const std::int64_t row = i / groups, column = i % groups * kVector;
    const int some = c.width - column < kVector ? static_cast<int>(c.width - column) : kVector;
    const std::int64_t at_gate = row * c.gate_stride + c.gate_first + column;
    const std::int64_t at_up = row * c.up_stride + c.up_first + column;
    const std::int64_t at_p = row * c.width + column;
    float g[kVector], u[kVector], p[kVector];
    device::load_some(c.gate, at_gate, some, c.vectors, g);
    device::load_some(c.up, at_up, some, c.vectors, u);
    if (kBackward) device::load_some(c.p, at_p, some, c.vectors, p);
    for (int e = 0; e < kVector; ++e) {
      const ValueAndSlope f = Act<kKind>::at(g[e]);
      const float up = u[e];
      if (kBackward) {
        g[e] = p[e] * up * f.slope;
        u[e] = p[e] * f.value;
      }
      p[e] = up * f.value;
    }
    if (kBackward) {
      device::store_some(c.gate, at_gate, some, c.vectors, g);
      device::store_some(c.up, at_up, some, c.vectors, u);
    }
    device::store_some(c.p, at_p, some, c.vectors, p);
  }
}

template <bool kBackward>
void start_gated_columns(const char* op, Activation kind, const ConstColumns& gate,
                         const ConstColumns& up, const TensorView& p) {
  const GatedColumns c{
      .gate = span_of(gate.tensor),
      .up = span_of(up.tensor),
      .p = span_of(p),
      .rows = up.rows(),
      .width = up.width,
      .gate_stride = gate.stride(),
      .gate_first = gate.first,
      .up_stride = up.stride(),
      .up_first = up.first,
      .vectors = aligned_columns(gate) && aligned_columns(up) && aligned_rows({p}, up.width)};
  device::with_activation(kind, [&](auto k) {
    start(op, gated_columns<k(), kBackward>, strided_grid(c.rows * ceil_divide(c.width, kVector)),
          c);
  });
}

void expect_gated(const char* op, const ConstColumns& gate, const ConstColumns& up,
                  const ConstTensorView& p) {
  expect(gate.rows() == up.rows() && gate.width == up.width && p.elements() == up.rows() * up.width,
         op, "gate, up and p are equally large");
}

void gated_forward(Activation kind, ConstColumns gate, ConstColumns up, TensorView p) {
  constexpr const char* op = "gated_forward";
  expect_gated(op, gate, up, p);
  if (!gate.whole() || !up.whole()) return start_gated_columns<false>(op, kind, gate, up, p);
  device::with_activation(kind, [&](auto k) {
    start_elementwise(op, GatedForward<k()>{}, p.elements(), {gate.tensor, up.tensor}, {p});
  });
}

void gated_backward(Activation kind, Columns gate, Columns up, TensorView d_p) {
  constexpr const char* op = "gated_backward";
  expect_gated(op, gate, up, d_p);
  if (!gate.whole() || !up.whole()) return start_gated_columns<true>(op, kind, gate, up, d_p);
  device::with_activation(kind, [&](auto k) {
    start_elementwise(op, GatedBackward<k()>{}, d_p.elements(), {gate.tensor, up.tensor, d_p},
                      {gate.tensor, up.tensor, d_p});
  });
}

void residual_add(ConstTensorView x, const Dropout& dropout, TensorView y) {
  expect(x.elements() == y.elements(), "residual_add", "x is as large as y");
  start_elementwise("residual_add", ResidualAdd{dropper_of(dropout)}, y.elements(), {x, y}, {y});
}

void residual_backward(const Dropout& dropout, TensorView d, TensorView e) {
  expect(d.elements() == e.elements(), "residual_backward", "d is as large as e");
  start_elementwise("residual_backward", ResidualBackward{dropper_of(dropout)}, d.elements(),
                    {d, e}, {d, e});
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
  table.residual_backward = residual_backward;
  table.dropout = dropout_op;
}

}  // namespace plimsoll::kernels::cuda
