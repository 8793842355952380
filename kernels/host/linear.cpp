// Products with a weight. fp32 operands go to the library as they are; 16-bit ones are widened tile
// by tile into the panels, and a tile of the result is rounded once, when its sum is complete.
#include "kernels/host/blocks.h"
#include "kernels/host/gemm.h"

namespace plimsoll::kernels::host {

namespace {

struct Matrix {
  ConstTensorView view;  // [rows, columns] as stored
  bool transposed = false;  // the product takes the transpose
};

struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  Matrix a, b;  // a: m × k, b: k × n
  ConstTensorView bias;  // [n] or none
  float scale = 1;
  bool accumulate = false;
};

// Rows and columns of `x` from (row, column) on, as the product sees them; stored in `to` as they
// are in memory.
Operand tile(const Matrix& x, std::int64_t row, std::int64_t column, std::int64_t rows,
             std::int64_t columns, float* to) {
  if (x.transposed) {
    std::swap(row, column);
    std::swap(rows, columns);
  }
  const std::int64_t stride = x.view.shape[1];
  if (x.view.dtype == DType::fp32)
    return {fp32_of(x.view) + row * stride + column, stride, x.transposed};
  for (std::int64_t r = 0; r < rows; ++r)
    read(x.view, (row + r) * stride + column, columns, to + r * columns);
  return {to, columns, x.transposed};
}

// What the sums start from: bias, and the old result where it is added to.
void start_row(const Product& p, const TensorView& c, std::int64_t row, std::int64_t column,
               std::int64_t columns, float* to) {
  if (p.bias)
    read(p.bias, column, columns, to);
  else
    std::fill(to, to + columns, 0.0f);
  if (!p.accumulate) return;
  in_blocks(columns, [&](std::int64_t first, std::int64_t n) {
    float old[kBlock];
    read(c, row * p.n + column + first, n, old);
    for (std::int64_t i = 0; i < n; ++i) to[first + i] += old[i];
  });
}

void multiply_fp32(const Product& p, const TensorView& c) {
  float* out = fp32_of(c);
  if (p.bias)
    for (std::int64_t i = 0; i < p.m; ++i) {
      in_blocks(p.n, [&](std::int64_t first, std::int64_t n) {
        float block[kBlock];
        start_row(p, c, i, first, n, block);
        std::copy(block, block + n, out + i * p.n + first);
      });
    }
  gemm(p.m, p.n, p.k, p.scale, tile(p.a, 0, 0, p.m, p.k, nullptr),
       tile(p.b, 0, 0, p.k, p.n, nullptr), p.bias || p.accumulate ? 1.0f : 0.0f, out, p.n);
}

// Three square tiles share the panels: one of the result, one of each operand.
void multiply_panels(const Product& p, const TensorView& c, const TensorView& panels) {
  expect(panels.elements() >= 3, "linear", "16-bit operands need panels");
  const auto side =
      static_cast<std::int64_t>(std::floor(std::sqrt(static_cast<double>(panels.elements() / 3))));
  float* sum = fp32_of(panels);
  float* left = sum + side * side;
  float* right = left + side * side;
  for (std::int64_t i = 0; i < p.m; i += side)
    for (std::int64_t j = 0; j < p.n; j += side) {
      const std::int64_t m = std::min(side, p.m - i), n = std::min(side, p.n - j);
      for (std::int64_t r = 0; r < m; ++r) start_row(p, c, i + r, j, n, sum + r * n);
      for (std::int64_t l = 0; l < p.k; l += side) {
        const std::int64_t k = std::min(side, p.k - l);
        gemm(m, n, k, p.scale, tile(p.a, i, l, m, k, left), tile(p.b, l, j, k, n, right), 1, sum,
             n);
      }
      for (std::int64_t r = 0; r < m; ++r) write(sum + r * n, (i + r) * p.n + j, n, c);
    }
}

void multiply(const Product& p, const TensorView& c, const TensorView& panels) {
  const auto fits = [](const Matrix& x, std::int64_t rows, std::int64_t columns) {
    return x.view.shape == (x.transposed ? Extents{columns, rows} : Extents{rows, columns});
  };
  expect(fits(p.a, p.m, p.k) && fits(p.b, p.k, p.n) && c.shape == Extents({p.m, p.n}), "linear",
         "the shapes of operands and result match");
  expect(!p.bias || p.bias.elements() == p.n, "linear", "the bias has one value for each column");
  const bool fp32 =
      p.a.view.dtype == DType::fp32 && p.b.view.dtype == DType::fp32 && c.dtype == DType::fp32;
  if (fp32)
    multiply_fp32(p, c);
  else
    multiply_panels(p, c, panels);
}

void linear_forward(ConstTensorView x, ConstTensorView weight, ConstTensorView bias,
                    const LinearOptions& options, TensorView y, TensorView panels) {
  multiply({.m = x.shape[0],
            .n = y.shape[1],
            .k = x.shape[1],
            .a = {x},
            .b = {weight, !options.transposed},
            .bias = bias,
            .scale = options.scale,
            .accumulate = options.accumulate},
           y, panels);
}

void linear_backward_input(ConstTensorView d_y, ConstTensorView weight,
                           const LinearOptions& options, TensorView d_x, TensorView panels) {
  multiply({.m = d_y.shape[0],
            .n = d_x.shape[1],
            .k = d_y.shape[1],
            .a = {d_y},
            .b = {weight, options.transposed},
            .bias = {},
            .scale = options.scale,
            .accumulate = options.accumulate},
           d_x, panels);
}

void linear_backward_weight(ConstTensorView d_y, ConstTensorView x, const LinearOptions& options,
                            TensorView d_weight, TensorView panels) {
  const ConstTensorView left = options.transposed ? x : d_y, right = options.transposed ? d_y : x;
  multiply({.m = left.shape[1],
            .n = right.shape[1],
            .k = left.shape[0],
            .a = {left, true},
            .b = {right},
            .bias = {},
            .scale = options.scale,
            .accumulate = options.accumulate},
           d_weight, panels);
}

}  // namespace

void add_linear(KernelTable& table) {
  table.linear_forward = linear_forward;
  table.linear_backward_input = linear_backward_input;
  table.linear_backward_weight = linear_backward_weight;
}

}  // namespace plimsoll::kernels::host
