// Sums over rows that become gradients of parameters, and the bias that is added to rows.
//
// Thread mapping: partial p of P adds rows p, p + P, p + 2P, … one after another, a thread for each
// eight columns (one column where rows are narrow, or too few threads would run). Then a thread for
// each column adds the partials in order to the gradient.
// Memory: x and d_y are read once; P partial rows in fp32 are written and read. bias_add: 1 read
// and 1 write of an element. Numerics: fp32 in the host's order: given the same statistics, the
// host's bits.
#include "kernels/cuda/operands.h"
#include "kernels/device/elementwise.cuh"

namespace plimsoll::kernels::cuda {

namespace {

using device::kVector;

struct RowSums {
  Span x, d_y;  // x: null where only the sum of d_y is wanted
  const float* statistics;
  bool centred, vectors;
  float* weight;  // [partials, width], or null
  float* bias;
  std::int64_t rows, width, partials;
  std::int64_t stride, first;  // of d_y's rows
};

template <int kColumns>
__device__ __forceinline__ void load_columns(const Span& s, std::int64_t at, int some, bool vectors,
                                             float* to) {
  if constexpr (kColumns == 1)
    to[0] = device::load_one(s, at);
  else
    device::load_some(s, at, some, vectors, to);
}

template <int kColumns>
__global__ void __launch_bounds__(kThreads) partial_sums(RowSums s) {
  const std::int64_t column = device::grid_thread() * kColumns;
  if (column >= s.width) return;
  const std::int64_t left = s.width - column;
  const int some = left < kColumns ? static_cast<int>(left) : kColumns;
  float weight[kColumns] = {}, bias[kColumns] = {};
#pragma unroll 4
  for (std::int64_t r = blockIdx.y; r < s.rows; r += s.partials) {
    float x[kColumns] = {}, d[kColumns];
    load_columns<kColumns>(s.d_y, r * s.stride + s.first + column, some, s.vectors, d);
    if (s.weight) {
      load_columns<kColumns>(s.x, r * s.width + column, some, s.vectors, x);
      const float mean = s.centred ? s.statistics[2 * r] : 0;
      const float inverse = s.statistics[s.centred ? 2 * r + 1 : r];
      for (int e = 0; e < kColumns; ++e) weight[e] += d[e] * ((x[e] - mean) * inverse);
    }
    for (int e = 0; e < kColumns; ++e) bias[e] += d[e];
  }
  const std::int64_t at = blockIdx.y * s.width + column;
  for (int e = 0; e < kColumns; ++e) {
    if (e >= some) break;
    if (s.weight) s.weight[at + e] = weight[e];
    if (s.bias) s.bias[at + e] = bias[e];
  }
}

__global__ void __launch_bounds__(kThreads)
    add_partials(const float* partial, std::int64_t partials, std::int64_t width, Span gradient) {
  const std::int64_t column = device::grid_thread();
  if (column >= width) return;
  float sum = 0;
#pragma unroll 8
  for (std::int64_t p = 0; p < partials; ++p) sum += partial[p * width + column];
  device::store_one(gradient, column, device::load_one(gradient, column) + sum);
}

__global__ void __launch_bounds__(kThreads)
    add_bias(Span bias, Span y, std::int64_t rows, std::int64_t width, bool vectors) {
  const std::int64_t groups = ceil_divide(width, kVector);
  for (std::int64_t g = device::grid_thread(); g < rows * groups; g += device::grid_threads()) {
    const std::int64_t row = g / groups, column = g % groups * kVector;
    const std::int64_t left = width - column;
    const int some = left < kVector ? static_cast<int>(left) : kVector;
    float b[kVector], v[kVector];
    device::load_some(y, row * width + column, some, vectors, v);
    device::load_some(bias, column, some, vectors, b);
    for (int e = 0; e < kVector; ++e) v[e] += b[e];
    device::store_some(y, row * width + column, some, vectors, v);
  }
}

void start_sums(const char* op, const RowSums& s) {
  // Eight columns a thread only where that leaves a few thousand threads.
  const bool wide = s.width >= 1024;
  Grid grid = block_each(ceil_divide(s.width, (wide ? kVector : 1) * kThreads), kThreads);
  expect(s.partials <= 65535, op, "there are at most 65535 partial sums");
  grid.blocks.y = static_cast<unsigned>(s.partials);
  start(op, wide ? partial_sums<kVector> : partial_sums<1>, grid, s);
}

void add_up(const char* op, const float* partial, std::int64_t partials, std::int64_t width,
            const TensorView& gradient) {
  start(op, add_partials, block_each(ceil_divide(width, kThreads), kThreads), partial, partials,
        width, span_of(gradient));
}

std::int64_t partials_of(const char* op, const TensorView& partial, std::int64_t row) {
  expect(partial && partial.elements() >= row && partial.elements() % row == 0, op,
         "partial sums are rows as wide as the weight");
  return partial.elements() / row;
}

void bias_add(ConstTensorView bias, TensorView y) {
  const std::int64_t width = bias.elements();
  expect(width > 0 && y.elements() % width == 0, "bias_add", "y has rows as wide as the bias");
  const std::int64_t rows = y.elements() / width;
  start("bias_add", add_bias, strided_grid(rows * ceil_divide(width, kVector)), span_of(bias),
        span_of(y), rows, width, aligned_rows({bias, y}, width));
}

void bias_backward(ConstColumns d_y, TensorView d_bias, TensorView partial) {
  constexpr const char* op = "bias_backward";
  const std::int64_t width = d_bias.elements();
  expect(width > 0 && (d_y.rows() == 0 || d_y.width == width), op,
         "d_y has rows as wide as the bias");
  const RowSums s{.x = {},
                  .d_y = span_of(d_y.tensor),
                  .statistics = nullptr,
                  .centred = false,
                  .vectors = aligned_columns(d_y),
                  .weight = nullptr,
                  .bias = fp32_of(partial),
                  .rows = d_y.rows(),
                  .width = width,
                  .partials = partials_of(op, partial, width),
                  .stride = d_y.stride(),
                  .first = d_y.first};
  start_sums(op, s);
  add_up(op, s.bias, s.partials, width, d_bias);
}

}  // namespace

void add_norm_gradients(const char* op, bool centred, const ConstTensorView& x,
                        const ConstTensorView& statistics, const ConstTensorView& d_y,
                        std::int64_t width, const TensorView& d_weight, const TensorView& d_bias,
                        const TensorView& partial) {
  const std::int64_t count = partials_of(op, partial, (centred ? 2 : 1) * width);
  float* sums = fp32_of(partial);
  const RowSums s{.x = span_of(x),
                  .d_y = span_of(d_y),
                  .statistics = statistics ? fp32_of(statistics) : nullptr,
                  .centred = centred,
                  .vectors = aligned_rows({x, d_y}, width),
                  .weight = d_weight ? sums : nullptr,
                  .bias = d_bias ? sums + count * width : nullptr,
                  .rows = x.elements() / width,
                  .width = width,
                  .partials = count,
                  .stride = width,
                  .first = 0};
  start_sums(op, s);
  if (d_weight) add_up(op, sums, count, width, d_weight);
  if (d_bias) add_up(op, sums + count * width, count, width, d_bias);
}

void add_row_sums(KernelTable& table) {
  table.bias_add = bias_add;
  table.bias_backward = bias_backward;
}

}  // namespace plimsoll::kernels::cuda
