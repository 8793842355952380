// LayerNorm and RMSNorm; the gradients of their weights are in row_sums.cu.
//
// Thread mapping: a row belongs to one, two, four or eight warps, the fewest of which a thread has
// at most four groups of eight elements, the same ones in every pass; several warps are a block.
// Fewer elements a thread mean fewer rows under way: with 256 threads to a row of 1,600 elements
// forward took 78 us of an H200 for 16,384 rows, whose bytes take 22
// (reports/evidence/2026-11-27-h200/speed-gpt2-xl.json).
// Memory: x is read from device memory once and y written once. Rows of 16-bit elements up to
// kMostGroups groups a thread stay in registers, all of their loads under way at once; of others,
// later passes find the row in the L1 cache. Backward reads x and d_y once (d_x too where it
// accumulates) and writes d_x.
// Numerics: fp32, two passes for mean and variance as on the host. A row's sum is a tree over the
// threads, which depends on its width alone.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/operands.h"
#include "kernels/device/reduce.cuh"

namespace plimsoll::kernels::cuda {

namespace {

using device::kVector;
using device::kWarp;

constexpr int kMostGroups = 4;  // a thread's of a row in registers: 8192 elements of a block

// Of a row.
int threads_of(std::int64_t width) {
  int threads = kWarp;
  while (threads < kThreads && width > std::int64_t{threads} * kMostGroups * kVector) threads *= 2;
  return threads;
}

struct Norm {
  Span x, weight, bias;  // bias: null where there is none
  float* statistics;
  std::int64_t rows, width;
  bool centred;  // LayerNorm
  float offset;  // added to the weight
  bool vectors;
};

struct Statistics {
  float mean, inverse;
};

__device__ __forceinline__ Statistics saved(const Norm& n, std::int64_t row) {
  return n.centred ? Statistics{n.statistics[2 * row], n.statistics[2 * row + 1]}
                   : Statistics{0, n.statistics[row]};
}

// Walks the thread's groups of a row: visit(group, first column, count). kGroups: how many there
// are at most, all of eight elements; 0: any number, and what is left at the end.
template <int kGroups, class Visit>
__device__ __forceinline__ void in_row(std::int64_t width, Visit visit) {
  const std::int64_t first = std::int64_t{threadIdx.x} * kVector;
  const std::int64_t step = std::int64_t{blockDim.x} * kVector;
  if constexpr (kGroups > 0) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
      if (first + g * step < width) visit(g, first + g * step, kVector);
  } else {
    for (std::int64_t c = first; c < width; c += step)
      visit(0, c, width - c < kVector ? static_cast<int>(width - c) : kVector);
  }
}

// The thread's groups of one row of an operand: in registers, or where kGroups is 0 fetched anew
// each time.
template <int kGroups>
class Row {
 public:
  __device__ __forceinline__ Row(const Span& span, std::int64_t row, const Norm& n)
      : span_(span), begin_(row * n.width), vectors_(n.vectors) {
    if constexpr (kGroups > 0)
      in_row<kGroups>(n.width, [&](int g, std::int64_t c, int) {
        kept_[g] = device::fetch_halves(span_, begin_ + c);
      });
  }
  __device__ __forceinline__ void get(int g, std::int64_t c, int some, float* to) const {
    if constexpr (kGroups > 0)
      device::widen_halves(span_, kept_[g], to);
    else
      device::load_some(span_, begin_ + c, some, vectors_, to);
  }

 private:
  Span span_;
  std::int64_t begin_;
  bool vectors_;
  uint4 kept_[kGroups > 0 ? kGroups : 1];
};

template <int kGroups>
__device__ Statistics statistics_of(const Norm& n, const Row<kGroups>& x, float eps,
                                    float* shared) {
  const auto count = static_cast<float>(n.width);
  Statistics s{0, 1};
  if (n.centred) {
    float sum = 0;
    in_row<kGroups>(n.width, [&](int g, std::int64_t c, int some) {
      float v[kVector];
      x.get(g, c, some, v);
      for (int e = 0; e < kVector; ++e) sum += v[e];
    });
    s.mean = device::row_sum(sum, shared) / count;
  }
  float squares = 0;
  in_row<kGroups>(n.width, [&](int g, std::int64_t c, int some) {
    float v[kVector];
    x.get(g, c, some, v);
    for (int e = 0; e < kVector; ++e) {
      const float centred = v[e] - s.mean;
      if (e < some) squares += centred * centred;
    }
  });
  s.inverse = 1 / sqrtf(device::row_sum(squares, shared) / count + eps);
  return s;
}

template <int kGroups>
__device__ void normalize(const Norm& n, std::int64_t row, const Row<kGroups>& x,
                          const Statistics& s, const Span& y) {
  in_row<kGroups>(n.width, [&](int g, std::int64_t c, int some) {
    float v[kVector], w[kVector], b[kVector] = {};
    x.get(g, c, some, v);
    device::load_some(n.weight, c, some, n.vectors, w);
    if (n.bias.data) device::load_some(n.bias, c, some, n.vectors, b);
    for (int e = 0; e < kVector; ++e) v[e] = (v[e] - s.mean) * s.inverse * (n.offset + w[e]) + b[e];
    device::store_some(y, row * n.width + c, some, n.vectors, v);
  });
}

__device__ __forceinline__ std::int64_t row_of_thread() {
  return std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
}

template <int kGroups>
__global__ void __launch_bounds__(kThreads) norm_forward(Norm n, float eps, Span y) {
  float* const shared = device::dynamic_shared<float>();
  const std::int64_t row = row_of_thread();
  if (row >= n.rows) return;  // a whole warp: rows of several to a block are narrow
  const Row<kGroups> x(n.x, row, n);
  const Statistics s = statistics_of(n, x, eps, shared);
  if (n.statistics && threadIdx.x == 0) {
    if (n.centred) n.statistics[2 * row] = s.mean;
    n.statistics[n.centred ? 2 * row + 1 : row] = s.inverse;
  }
  normalize(n, row, x, s, y);
}

template <int kGroups>
__global__ void __launch_bounds__(kThreads) norm_again(Norm n, Span y) {
  const std::int64_t row = row_of_thread();
  if (row < n.rows) normalize(n, row, Row<kGroups>(n.x, row, n), saved(n, row), y);
}

struct Slopes {
  float n[kVector], g[kVector];
};
template <int kGroups>
__device__ __forceinline__ Slopes slopes(const Norm& n, const Row<kGroups>& x_row,
                                         const Row<kGroups>& d_y, const Statistics& s, int g,
                                         std::int64_t c, int some) {
  float x[kVector], w[kVector], d[kVector];
  x_row.get(g, c, some, x);
  d_y.get(g, c, some, d);
  device::load_some(n.weight, c, some, n.vectors, w);
  Slopes result;
  for (int e = 0; e < kVector; ++e) {
    result.n[e] = (x[e] - s.mean) * s.inverse;
    result.g[e] = d[e] * (n.offset + w[e]);
  }
  return result;
}

template <int kGroups, bool kAccumulate>
__global__ void __launch_bounds__(kThreads) norm_backward(Norm n, Span d_y_rows, Span d_x) {
  float* const shared = device::dynamic_shared<float>();
  const std::int64_t row = row_of_thread();
  if (row >= n.rows) return;
  const Row<kGroups> x(n.x, row, n), d_y(d_y_rows, row, n);
  // Only where it is wanted: fetched here, it is there when it is needed.
  const Row<kAccumulate ? kGroups : 0> old(d_x, row, n);
  const Statistics s = saved(n, row);
  float sum_g = 0, sum_gn = 0;
  in_row<kGroups>(n.width, [&](int g, std::int64_t c, int some) {
    const Slopes v = slopes(n, x, d_y, s, g, c, some);
    for (int e = 0; e < kVector; ++e) {
      if (e >= some) break;
      sum_g += v.g[e];
      sum_gn += v.g[e] * v.n[e];
    }
  });
  const auto count = static_cast<float>(n.width);
  const float mean_g = n.centred ? device::row_sum(sum_g, shared) / count : 0;
  const float mean_gn = device::row_sum(sum_gn, shared) / count;
  in_row<kGroups>(n.width, [&](int g, std::int64_t c, int some) {
    const Slopes v = slopes(n, x, d_y, s, g, c, some);
    float before[kVector] = {}, dx[kVector];
    if constexpr (kAccumulate) old.get(g, c, some, before);
    for (int e = 0; e < kVector; ++e) {
      const float slope = s.inverse * (v.g[e] - mean_g - v.n[e] * mean_gn);
      dx[e] = kAccumulate ? before[e] + slope : slope;
    }
    device::store_some(d_x, row * n.width + c, some, n.vectors, dx);
  });
}

// Launches -------------------------------------------------------------------------------------

constexpr std::size_t kSharedBytes = device::kMostWarps * sizeof(float);

Grid row_grid(std::int64_t rows, std::int64_t width) {
  const int threads = threads_of(width);
  if (threads > kWarp) return block_each(rows, threads, kSharedBytes);
  constexpr int warps = kThreads / kWarp;
  Grid grid = block_each(ceil_divide(rows, warps), kThreads, kSharedBytes);
  grid.threads = dim3(kWarp, warps);
  return grid;
}

// start(std::integral_constant): how many groups of a row of these operands a thread keeps.
template <class Start>
void with_groups(const Norm& n, std::initializer_list<Span> rows, Start start) {
  const bool halves = n.vectors && std::ranges::all_of(rows, [](const Span& span) {
                        return span.storage != device::Storage::fp32;
                      });
  const std::int64_t threads = threads_of(n.width);
  static_assert(kMostGroups == 4);
  switch (halves ? ceil_divide(n.width, threads * kVector) : 0) {
    case 1:
      return start(std::integral_constant<int, 1>{});
    case 2:
      return start(std::integral_constant<int, 2>{});
    case 3:
      return start(std::integral_constant<int, 3>{});
    case 4:
      return start(std::integral_constant<int, 4>{});
    default:
      return start(std::integral_constant<int, 0>{});
  }
}

Norm norm_of(const char* op, bool centred, const ConstTensorView& x, const ConstTensorView& weight,
             float offset, const ConstTensorView& bias, const ConstTensorView& statistics) {
  const std::int64_t width = weight.elements();
  expect(width > 0 && x.elements() % width == 0, op, "x has rows as wide as the weight");
  expect(!bias || bias.elements() == width, op, "the bias is as wide as the weight");
  const std::int64_t rows = x.elements() / width;
  expect(!statistics || statistics.elements() == rows * (centred ? 2 : 1), op,
         "statistics have one row for each of x");
  return {.x = span_of(x),
          .weight = span_of(weight),
          .bias = span_of(bias),
          .statistics = statistics ? const_cast<float*>(fp32_of(statistics)) : nullptr,
          .rows = rows,
          .width = width,
          .centred = centred,
          .offset = offset,
          .vectors = aligned_rows({x, weight, bias}, width)};
}

void forward(const char* op, bool centred, const ConstTensorView& x, const ConstTensorView& weight,
             float offset, const ConstTensorView& bias, float eps, const TensorView& y,
             const TensorView& statistics) {
  Norm n = norm_of(op, centred, x, weight, offset, bias, statistics);
  expect(y.elements() == x.elements(), op, "y is as large as x");
  n.vectors = n.vectors && aligned({y});
  with_groups(n, {n.x, span_of(y)}, [&](auto groups) {
    start(op, norm_forward<groups()>, row_grid(n.rows, n.width), n, eps, span_of(y));
  });
}

void again(const char* op, bool centred, const ConstTensorView& x,
           const ConstTensorView& statistics, const ConstTensorView& weight, float offset,
           const ConstTensorView& bias, const TensorView& y) {
  Norm n = norm_of(op, centred, x, weight, offset, bias, statistics);
  expect((statistics || n.rows == 0) && y.elements() == x.elements(), op, "y is as large as x");
  n.vectors = n.vectors && aligned({y});
  with_groups(n, {n.x, span_of(y)}, [&](auto groups) {
    start(op, norm_again<groups()>, row_grid(n.rows, n.width), n, span_of(y));
  });
}

void backward(const char* op, bool centred, const ConstTensorView& x,
              const ConstTensorView& statistics, const ConstTensorView& weight, float offset,
              const ConstTensorView& d_y, bool accumulate, const TensorView& d_x,
              const TensorView& d_weight, const TensorView& d_bias, const TensorView& partial) {
  Norm n = norm_of(op, centred, x, weight, offset, d_bias, statistics);
  n.bias = {};
  expect((statistics || n.rows == 0) && d_y.elements() == x.elements() &&
             (!d_x || d_x.elements() == x.elements()) &&
             (!d_weight || d_weight.elements() == n.width),
         op, "gradients are as large as what they are of");
  // First, because d_x may be d_y.
  if (d_weight || d_bias)
    add_norm_gradients(op, centred, x, statistics, d_y, n.width, d_weight, d_bias, partial);
  if (!d_x) return;
  n.vectors = n.vectors && aligned({d_y, d_x});
  with_groups(n, {n.x, span_of(d_y), span_of(d_x)}, [&](auto groups) {
    start(op, accumulate ? norm_backward<groups(), true> : norm_backward<groups(), false>,
          row_grid(n.rows, n.width), n, span_of(d_y), span_of(d_x));
  });
}

void layer_norm_forward(ConstTensorView x, ConstTensorView weight, ConstTensorView bias, float eps,
                        TensorView y, TensorView statistics) {
  forward("layer_norm_forward", true, x, weight, 0, bias, eps, y, statistics);
}
void layer_norm_again(ConstTensorView x, ConstTensorView statistics, ConstTensorView weight,
                      ConstTensorView bias, TensorView y) {
  again("layer_norm_again", true, x, statistics, weight, 0, bias, y);
}
void layer_norm_backward(ConstTensorView x, ConstTensorView statistics, ConstTensorView weight,
                         ConstTensorView d_y, bool accumulate, TensorView d_x, TensorView d_weight,
                         TensorView d_bias, TensorView partial) {
  backward("layer_norm_backward", true, x, statistics, weight, 0, d_y, accumulate, d_x, d_weight,
           d_bias, partial);
}
void rms_norm_forward(ConstTensorView x, ConstTensorView weight, float offset, float eps,
                      TensorView y, TensorView statistics) {
  forward("rms_norm_forward", false, x, weight, offset, {}, eps, y, statistics);
}
void rms_norm_again(ConstTensorView x, ConstTensorView statistics, ConstTensorView weight,
                    float offset, TensorView y) {
  again("rms_norm_again", false, x, statistics, weight, offset, {}, y);
}
void rms_norm_backward(ConstTensorView x, ConstTensorView statistics, ConstTensorView weight,
                       float offset, ConstTensorView d_y, bool accumulate, TensorView d_x,
                       TensorView d_weight, TensorView partial) {
  backward("rms_norm_backward", false, x, statistics, weight, offset, d_y, accumulate, d_x,
           d_weight, {}, partial);
}

}  // namespace

void add_norms(KernelTable& table) {
  table.layer_norm_forward = layer_norm_forward;
  table.layer_norm_again = layer_norm_again;
  table.layer_norm_backward = layer_norm_backward;
  table.rms_norm_forward = rms_norm_forward;
  table.rms_norm_again = rms_norm_again;
  table.rms_norm_backward = rms_norm_backward;
}

}  // namespace plimsoll::kernels::cuda
