// Elementwise ops of a layer.
#include "kernels/host/activation.h"
#include "kernels/host/blocks.h"

namespace plimsoll::kernels::host {

namespace {

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

// Visits blocks of gate, up and p: the first element of each, and how many.
template <class Visit>
void gated(const char* op, const ConstColumns& gate, const ConstColumns& up,
           const ConstTensorView& p, Visit visit) {
  expect(gate.rows() == up.rows() && gate.width == up.width && p.elements() == up.rows() * up.width,
         op, "gate, up and p are equally large");
  if (gate.whole() && up.whole())
    return in_blocks(p.elements(),
                     [&](std::int64_t first, std::int64_t n) { visit(first, first, first, n); });
  for (std::int64_t row = 0; row < up.rows(); ++row)
    in_blocks(up.width, [&](std::int64_t first, std::int64_t n) {
      visit(row * gate.stride() + gate.first + first, row * up.stride() + up.first + first,
            row * up.width + first, n);
    });
}

void gated_forward(Activation kind, ConstColumns gate, ConstColumns up, TensorView p) {
  gated("gated_forward", gate, up, p,
        [&](std::int64_t at_gate, std::int64_t at_up, std::int64_t first, std::int64_t n) {
          float g[kBlock], u[kBlock];
          read(gate.tensor, at_gate, n, g);
          read(up.tensor, at_up, n, u);
          for (std::int64_t i = 0; i < n; ++i) u[i] *= activation(kind, g[i]).value;
          write(u, first, n, p);
        });
}

void gated_backward(Activation kind, Columns gate, Columns up, TensorView d_p) {
  gated("gated_backward", gate, up, d_p,
        [&](std::int64_t at_gate, std::int64_t at_up, std::int64_t first, std::int64_t n) {
          float g[kBlock], u[kBlock], d[kBlock];
          read(gate.tensor, at_gate, n, g);
          read(up.tensor, at_up, n, u);
          read(d_p, first, n, d);
          for (std::int64_t i = 0; i < n; ++i) {
            const ValueAndSlope f = activation(kind, g[i]);
            g[i] = d[i] * u[i] * f.slope;
            const float product = u[i] * f.value;
            u[i] = d[i] * f.value;
            d[i] = product;
          }
          write(g, at_gate, n, gate.tensor);
          write(u, at_up, n, up.tensor);
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

void residual_backward(const Dropout& dropout, TensorView d, TensorView e) {
  expect(d.elements() == e.elements(), "residual_backward", "d is as large as e");
  in_blocks(d.elements(), [&](std::int64_t first, std::int64_t n) {
    float stream[kBlock], other[kBlock];
    read(d, first, n, stream);
    read(e, first, n, other);
    add_scaled(1, stream, n, other);
    drop(dropout, first, n, stream);
    write(other, first, n, d);
    write(stream, first, n, e);
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
  table.residual_backward = residual_backward;
  table.dropout = dropout_op;
}

}  // namespace plimsoll::kernels::host
