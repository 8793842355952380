// GEMMs with a weight. fp32 operands go to the library as they are; 16-bit ones are widened tile
// by tile into the panels, and a tile of the result is rounded once, when its sum is complete.
#include "kernels/host/blocks.h"
#include "kernels/host/gemm.h"

namespace plimsoll::kernels::host {

namespace {

struct Matrix {
  ConstColumns view;  // rows and columns as stored
  bool transposed = false;  // the GEMM takes the transpose
};

struct Gemm {
  std::int64_t m = 0, n = 0, k = 0;
  Matrix a, b;  // a: m × k, b: k × n
  ConstTensorView bias;  // [n] or none
  float scale = 1;
  bool accumulate = false;
};

template <class T>
void widen(const ConstTensorView& from, std::int64_t first, std::int64_t n, float* to) {
  const T* const x = static_cast<const T*>(from.data) + first;
  for (std::int64_t i = 0; i < n; ++i) to[i] = widened(x[i]);
}
// Operands of 8 bits too, which only GEMMs read.
void read_operand(const ConstTensorView& from, std::int64_t first, std::int64_t n, float* to) {
  if (from.dtype == DType::fp8_e4m3) return widen<E4m3>(from, first, n, to);
  if (from.dtype == DType::fp8_e5m2) return widen<E5m2>(from, first, n, to);
  read(from, first, n, to);
}

// Rows and columns of `x` from (row, column) on, as the GEMM sees them; stored in `to` as they
// are in memory.
Operand tile(const Matrix& x, std::int64_t row, std::int64_t column, std::int64_t rows,
             std::int64_t columns, float* to) {
  if (x.transposed) {
    std::swap(row, column);
    std::swap(rows, columns);
  }
  const std::int64_t stride = x.view.rows() == 0 ? columns : x.view.stride();
  const std::int64_t first = row * stride + x.view.first + column;
  if (x.view.tensor.dtype == DType::fp32)
    return {fp32_of(x.view.tensor) + first, stride, x.transposed};
  for (std::int64_t r = 0; r < rows; ++r)
    read_operand(x.view.tensor, first + r * stride, columns, to + r * columns);
  return {to, columns, x.transposed};
}

// What the sums start from: bias, and the old result where it is added to.
void start_row(const Gemm& p, const Columns& c, std::int64_t row, std::int64_t column,
               std::int64_t columns, float* to) {
  if (p.bias)
    read(p.bias, column, columns, to);
  else
    std::fill(to, to + columns, 0.0f);
  if (!p.accumulate) return;
  in_blocks(columns, [&](std::int64_t first, std::int64_t n) {
    float old[kBlock];
    read(c.tensor, row * c.stride() + c.first + column + first, n, old);
    for (std::int64_t i = 0; i < n; ++i) to[first + i] += old[i];
  });
}

void multiply_fp32(const Gemm& p, const Columns& c) {
  float* out = fp32_of(c.tensor) + c.first;
  if (p.bias)
    for (std::int64_t i = 0; i < p.m; ++i) {
      in_blocks(p.n, [&](std::int64_t first, std::int64_t n) {
        float block[kBlock];
        start_row(p, c, i, first, n, block);
        std::copy(block, block + n, out + i * c.stride() + first);
      });
    }
  gemm(p.m, p.n, p.k, p.scale, tile(p.a, 0, 0, p.m, p.k, nullptr),
       tile(p.b, 0, 0, p.k, p.n, nullptr), p.bias || p.accumulate ? 1.0f : 0.0f, out, c.stride());
}

// Three square tiles share the panels: one of the result, one of each operand.
void multiply_panels(const Gemm& p, const Columns& c, const TensorView& panels) {
  expect(panels.elements() >= 3, "linear", "16-bit operands need panels");
  const std::int64_t third = panels.elements() / 3;
  const auto side = static_cast<std::int64_t>(std::floor(std::sqrt(static_cast<double>(third))));
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
      for (std::int64_t r = 0; r < m; ++r)
        write(sum + r * n, (i + r) * c.stride() + c.first + j, n, c.tensor);
    }
}

void multiply(const Gemm& p, const Columns& c, const TensorView& panels) {
  expect(fits(p.a.view, p.a.transposed, p.m, p.k) && fits(p.b.view, p.b.transposed, p.k, p.n) &&
             fits(c, false, p.m, p.n),
         "linear", "the shapes of operands and result match");
  expect(!p.bias || p.bias.elements() == p.n, "linear", "the bias has one value for each column");
  if (p.m == 0 || p.n == 0) return;
  const bool fp32 = p.a.view.tensor.dtype == DType::fp32 && p.b.view.tensor.dtype == DType::fp32 &&
                    c.tensor.dtype == DType::fp32;
  if (fp32)
    multiply_fp32(p, c);
  else
    multiply_panels(p, c, panels);
}

void linear_forward(ConstTensorView x, ConstTensorView weight, ConstTensorView bias,
                    const LinearOptions& options, Columns y, TensorView panels) {
  multiply({.m = x.shape[0],
            .n = weight.shape[options.transposed ? 1 : 0],
            .k = x.shape[1],
            .a = {x},
            .b = {weight, !options.transposed},
            .bias = bias,
            .scale = options.scale,
            .accumulate = options.accumulate},
           y, panels);
}

void linear_backward_input(ConstColumns d_y, ConstTensorView weight, const LinearOptions& options,
                           TensorView d_x, TensorView panels) {
  multiply({.m = d_y.rows(),
            .n = d_x.shape[1],
            .k = weight.shape[options.transposed ? 1 : 0],
            .a = {d_y},
            .b = {weight, options.transposed},
            .bias = {},
            .scale = options.scale,
            .accumulate = options.accumulate},
           d_x, panels);
}

void linear_backward_weight(ConstColumns d_y, ConstTensorView x, const LinearOptions& options,
                            TensorView d_weight, TensorView panels) {
  const ConstColumns left = options.transposed ? ConstColumns(x) : d_y;
  const ConstColumns right = options.transposed ? d_y : ConstColumns(x);
  multiply({.m = d_weight.shape[0],
            .n = d_weight.shape[1],
            .k = left.rows(),
            .a = {left, true},
            .b = {right},
            .bias = {},
            .scale = options.scale,
            .accumulate = options.accumulate},
           d_weight, panels);
}

void float8_gemm(const Float8Matrix& a, const Float8Matrix& b, ConstTensorView bias,
                 const Float8Options& options, TensorView y, TensorView panels) {
  expect_product(a, b, bias, y);
  multiply({.m = y.shape[0],
            .n = y.shape[1],
            .k = a.values.shape[1],
            .a = {a.values},
            .b = {b.values, true},
            .bias = bias,
            .scale = fp32_of(a.scale)[0] * fp32_of(b.scale)[0],
            .accumulate = options.accumulate},
           y, panels);
}

}  // namespace

void expect_product(const Float8Matrix& a, const Float8Matrix& b, const ConstTensorView& bias,
                    const TensorView& y) {
  const char* const op = "float8_gemm";
  for (const Float8Matrix& m : {a, b}) {
    expect_float8(m.values.dtype, op);
    expect(m.scale.dtype == DType::fp32 && m.scale.elements() == 2, op,
           "a scale is two values of fp32");
  }
  expect(a.values.dtype == DType::fp8_e4m3 || b.values.dtype == DType::fp8_e4m3, op,
         "one of the operands is e4m3");
  expect(a.values.shape.rank == 2 && b.values.shape.rank == 2 && y.shape.rank == 2 &&
             a.values.shape[1] == b.values.shape[1] && y.shape[0] == a.values.shape[0] &&
             y.shape[1] == b.values.shape[0],
         op, "the shapes of operands and result match");
  expect(!bias || bias.elements() == y.shape[1], op, "the bias has one value for each column");
}

void add_linear(KernelTable& table) {
  table.float8_gemm = float8_gemm;
  table.linear_forward = linear_forward;
  table.linear_backward_input = linear_backward_input;
  table.linear_backward_weight = linear_backward_weight;
}

}  // namespace plimsoll::kernels::host
