// Sums over rows that become gradients of parameters, and the bias that is added to rows.
//
// Thread mapping: partial p of P adds rows p, p + P, p + 2P, … one after another, a thread for each
// eight columns; their order is the host's, so what hides the memory's latency is that the loads of
// many rows are under way before the first is added. (One column a thread where rows have 32 bits,
// are narrow or not aligned.) Then a thread for each column adds the partials in order to the
// gradient, fetched as many at once.
// Memory: x and d_y are read once; P partial rows in fp32 are written and read. bias_add: 1 read
// and 1 write of an element. Numerics: fp32 in the host's order: given the same statistics, the
// host's bits.
#include <algorithm>

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

struct RowStatistics {
  float mean, inverse;
};
__device__ __forceinline__ RowStatistics statistics_of(const RowSums& s, std::int64_t row) {
  return s.centred ? RowStatistics{s.statistics[2 * row], s.statistics[2 * row + 1]}
                   : RowStatistics{0, s.statistics[row]};
}

// Any storage, any alignment: a thread for each column.
__global__ void __launch_bounds__(kThreads) partial_sums_of_columns(RowSums s) {
  const std::int64_t column = device::grid_thread();
  if (column >= s.width) return;
  float weight = 0, bias = 0;
#pragma unroll 4
  for (std::int64_t r = blockIdx.y; r < s.rows; r += s.partials) {
    const float d = device::load_one(s.d_y, r * s.stride + s.first + column);
    if (s.weight) {
      const float x = device::load_one(s.x, r * s.width + column);
      const RowStatistics of = statistics_of(s, r);
      weight += d * ((x - of.mean) * of.inverse);
    }
    bias += d;
  }
  const std::int64_t at = blockIdx.y * s.width + column;
  if (s.weight) s.weight[at] = weight;
  if (s.bias) s.bias[at] = bias;
}

// Adds kRows rows from `r` on, a partial's one after another, to eight columns of their sums: first
// all loads, without a branch between them, because what waits for one waits for the rest.
template <int kRows, bool kWeight, bool kCentred>
__device__ __forceinline__ void add_rows(const RowSums& s, std::int64_t r, std::int64_t column,
                                         float* weight, float* bias) {
  uint4 x[kRows], d[kRows];
  float mean[kRows], inverse[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const std::int64_t row = r + i * s.partials;
    d[i] = device::fetch_halves(s.d_y, row * s.stride + s.first + column);
    if constexpr (kWeight) {
      x[i] = device::fetch_halves(s.x, row * s.width + column);
      mean[i] = kCentred ? s.statistics[2 * row] : 0;
      inverse[i] = s.statistics[kCentred ? 2 * row + 1 : row];
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float v[kVector], n[kVector];
    device::widen_halves(s.d_y, d[i], v);
    if constexpr (kWeight) {
      device::widen_halves(s.x, x[i], n);
      for (int e = 0; e < kVector; ++e) weight[e] += v[e] * ((n[e] - mean[i]) * inverse[i]);
    }
    for (int e = 0; e < kVector; ++e) bias[e] += v[e];
  }
}

// Of 16-bit rows, eight columns a thread; so many rows at once that the threads of one block to a
// multiprocessor have some 20 KB under way.
template <bool kWeight, bool kCentred>
__global__ void __launch_bounds__(kThreads) partial_sums(RowSums s) {
  constexpr int kAtOnce = kWeight ? 8 : 16;
  const std::int64_t column = device::grid_thread() * kVector;
  if (column >= s.width) return;
  float weight[kVector] = {}, bias[kVector] = {};
  std::int64_t r = blockIdx.y;
  for (; r + (kAtOnce - 1) * s.partials < s.rows; r += kAtOnce * s.partials)
    add_rows<kAtOnce, kWeight, kCentred>(s, r, column, weight, bias);
  for (; r < s.rows; r += s.partials) add_rows<1, kWeight, kCentred>(s, r, column, weight, bias);
  const std::int64_t at = blockIdx.y * s.width + column;
  for (int e = 0; e < kVector; ++e) {
    if constexpr (kWeight) s.weight[at + e] = weight[e];
    if (s.bias) s.bias[at + e] = bias[e];
  }
}

struct Total {
  const float* partial;
  Span gradient;
};

__global__ void __launch_bounds__(device::kWarp)
    add_partials(Total weight, Total bias, std::int64_t partials, std::int64_t width) {
  constexpr int kAtOnce = 128;  // all that there are; some 50 are under way (registers)
  const Total t = blockIdx.y == 0 ? weight : bias;
  const std::int64_t column = device::grid_thread();
  if (column >= width) return;
  const float before = device::load_one(t.gradient, column);
  float sum = 0;
  std::int64_t p = 0;
  for (; p + kAtOnce <= partials; p += kAtOnce) {
    float v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) v[i] = t.partial[(p + i) * width + column];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) sum += v[i];
  }
  for (; p < partials; ++p) sum += t.partial[p * width + column];
  device::store_one(t.gradient, column, before + sum);
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
  expect(s.partials <= 65535, op, "there are at most 65535 partial sums");
  const bool halves = s.vectors && s.d_y.storage != device::Storage::fp32 &&
                      (!s.weight || s.x.storage != device::Storage::fp32);
  const std::int64_t items = halves ? s.width / kVector : s.width;
  // No warp of a block without work: narrow rows have few threads as it is.
  const auto threads = static_cast<int>(
      std::min<std::int64_t>(kThreads, ceil_divide(items, device::kWarp) * device::kWarp));
  Grid grid = block_each(ceil_divide(items, threads), threads);
  grid.blocks.y = static_cast<unsigned>(s.partials);
  if (!halves)
    start(op, partial_sums_of_columns, grid, s);
  else
    start(op,
          !s.weight   ? partial_sums<false, false>
          : s.centred ? partial_sums<true, true>
                      : partial_sums<true, false>,
          grid, s);
}

// Adds the partial sums of either or both to what the gradients have.
void add_up(const char* op, const RowSums& s, const TensorView& d_weight,
            const TensorView& d_bias) {
  const Total weight{s.weight, span_of(d_weight)}, bias{s.bias, span_of(d_bias)};
  Grid grid = block_each(ceil_divide(s.width, device::kWarp), device::kWarp);
  grid.blocks.y = s.weight && s.bias ? 2 : 1;
  start(op, add_partials, grid, s.weight ? weight : bias, bias, s.partials, s.width);
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
  add_up(op, s, {}, d_bias);
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
  add_up(op, s, d_weight, d_bias);
}

void add_row_sums(KernelTable& table) {
  table.bias_add = bias_add;
  table.bias_backward = bias_backward;
}

}  // namespace plimsoll::kernels::cuda
