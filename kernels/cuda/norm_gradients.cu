// A norm's backward with the gradients of its parameters, of rows in 16 bits, in one pass.
//
// Thread mapping: block p of P makes d_x of rows p, p + P, p + 2P, … and their part of the
// parameters' gradients, which is partial p of row_sums.cu. It has several rows at once, each of
// one to eight warps. They lie in shared memory, where every thread also adds, row after row, the
// columns that it owns.
// Memory: x and d_y are read once (d_x too where it accumulates) and d_x is written once: 6 bytes
// an element, where a pass for d_x and another for the parameters read 4 more. The next rows are
// copied to the second half of the shared memory while these are at work: up to 48 KB under way in
// a multiprocessor, which has one block. Numerics: a row's sums are a tree over its threads, which
// depends on the width alone; those of a column have the order of row_sums.cu, and its bits. d_x
// may be d_y: a row is there before it is written.
#include <algorithm>

#include "kernels/cuda/norm_rows.cuh"

namespace plimsoll::kernels::cuda::norm {

namespace {

using device::kWarp;

constexpr int kMostThreads = 512;
constexpr int kMostLanes = kThreads, kWarpsOfRow = kThreads / kWarp;
constexpr int kMostRows = kMostThreads / kWarp;
constexpr int kGroups = 4;  // of eight elements a lane has of a row at most

struct Task {
  Norm n;
  Span d_y, d_x;
  float *weight, *bias;  // [partials, width], or null
};

struct Sums {
  float g, gn;
};

// What is in shared memory beside the rows; rows take turns.
struct Beside {
  Statistics statistics[2][kMostRows];
  Sums sums[2][kMostRows][kWarpsOfRow];
};

constexpr std::size_t row_bytes(std::int64_t width, bool accumulate) {
  return static_cast<std::size_t>(width) * (accumulate ? 6 : 4);
}

// Of eight elements: d_y, the normalized x, and d_y · weight.
struct Slopes {
  float d[kVector], n[kVector], g[kVector];
};
__device__ __forceinline__ Slopes slopes(const Task& t, const uint4& x_bits, const uint4& d_y_bits,
                                         const Statistics& s, std::int64_t column) {
  float x[kVector], w[kVector];
  Slopes v;
  device::widen_halves(t.n.x, x_bits, x);
  device::widen_halves(t.d_y, d_y_bits, v.d);
  device::load_some(t.n.weight, column, kVector, true, w);
  for (int e = 0; e < kVector; ++e) {
    v.n[e] = (x[e] - s.mean) * s.inverse;
    v.g[e] = v.d[e] * (t.n.offset + w[e]);
  }
  return v;
}

// kOwned: groups of eight columns whose sums a thread has at most.
template <int kOwned, bool kAccumulate, bool kCentred>
__global__ void __launch_bounds__(kMostThreads, 1) one_pass(Task t) {
  const std::int64_t vectors = t.n.width / kVector, partials = gridDim.x;
  const std::int64_t row_vectors = (kAccumulate ? 3 : 2) * vectors;
  const int lane = static_cast<int>(threadIdx.x), mine = static_cast<int>(threadIdx.y);
  const int lanes = static_cast<int>(blockDim.x), rows = static_cast<int>(blockDim.y);
  uint4* const halves = device::dynamic_shared<uint4>();  // [2][rows][x, d_y, d_x before][vectors]
  const int warps = t.n.width > kNarrow ? kWarpsOfRow : 1;  // of norm_backward's, for a row
  Beside& beside = *reinterpret_cast<Beside*>(halves + 2 * rows * row_vectors);
  const auto count = static_cast<float>(t.n.width);
  float weight[kOwned][kVector] = {}, bias[kOwned][kVector] = {};

  const auto row_of = [&](int half, int row) { return halves + (half * rows + row) * row_vectors; };
  Statistics coming{};
  const auto fetch = [&](int half, std::int64_t row) {
    if (row >= t.n.rows) return;
    uint4* const to = row_of(half, mine);
    const auto copy = [&](int operand, const Span& from) {
      const uint4* const bits = static_cast<const uint4*>(from.data) + row * vectors;
      for (std::int64_t v = lane; v < vectors; v += lanes)
        device::copy_async(to + operand * vectors + v, bits + v, true);
    };
    copy(0, t.n.x);
    copy(1, t.d_y);
    if constexpr (kAccumulate) copy(2, t.d_x);
    coming = saved(t.n, row);
  };

  fetch(0, blockIdx.x + mine * partials);
  int half = 0;
  for (std::int64_t first = blockIdx.x; first < t.n.rows; first += rows * partials, half ^= 1) {
    const std::int64_t row = first + mine * partials;
    const bool there = row < t.n.rows;
    const Statistics s = coming;
    if (lane == 0) beside.statistics[half][mine] = s;
    device::wait_for_copies();
    __syncthreads();  // these rows have arrived, and nobody reads those of the other half any more
    fetch(half ^ 1, row + rows * partials);

    const uint4* const x = row_of(half, mine);
    const uint4* const d_y = x + vectors;
    // As many sums as norm_backward's threads would have, whose tree this is: a lane has several.
    Sums sums{0, 0};
    for (int w = lane / kWarp; w < warps; w += lanes / kWarp) {
      sums = {0, 0};
      if (there)
        for (std::int64_t v = w * kWarp + lane % kWarp; v < vectors; v += warps * kWarp) {
          const Slopes at = slopes(t, x[v], d_y[v], s, v * kVector);
          for (int e = 0; e < kVector; ++e) {
            sums.g += at.g[e];
            sums.gn += at.g[e] * at.n[e];
          }
        }
      for (int step = kWarp / 2; step > 0; step /= 2) {
        sums.g += __shfl_xor_sync(device::kAllLanes, sums.g, step);
        sums.gn += __shfl_xor_sync(device::kAllLanes, sums.gn, step);
      }
      if (warps > 1 && lane % kWarp == 0) beside.sums[half][mine][w] = sums;
    }

    // Columns, while the other warps of a row arrive.
#pragma unroll
    for (int o = 0; o < kOwned; ++o) {
      const std::int64_t v = mine * lanes + lane + o * std::int64_t{lanes} * rows;
      if (v >= vectors) break;
      for (int r = 0; r < rows && first + r * partials < t.n.rows; ++r) {
        float a[kVector], d[kVector];
        device::widen_halves(t.n.x, row_of(half, r)[v], a);
        device::widen_halves(t.d_y, row_of(half, r)[vectors + v], d);
        const Statistics of = beside.statistics[half][r];
        for (int e = 0; e < kVector; ++e) {
          weight[o][e] += d[e] * ((a[e] - of.mean) * of.inverse);
          bias[o][e] += d[e];
        }
      }
    }

    if (warps > 1) {
      __syncthreads();
      sums = beside.sums[half][mine][0];
      for (int w = 1; w < warps; ++w) {
        sums.g += beside.sums[half][mine][w].g;
        sums.gn += beside.sums[half][mine][w].gn;
      }
    }
    if (!there) continue;
    const float mean_g = kCentred ? sums.g / count : 0, mean_gn = sums.gn / count;
    for (std::int64_t v = lane; v < vectors; v += lanes) {
      const Slopes at = slopes(t, x[v], d_y[v], s, v * kVector);
      float before[kVector] = {}, d_x[kVector];
      if constexpr (kAccumulate) device::widen_halves(t.d_x, d_y[vectors + v], before);
      for (int e = 0; e < kVector; ++e) {
        const float slope = s.inverse * (at.g[e] - mean_g - at.n[e] * mean_gn);
        d_x[e] = kAccumulate ? before[e] + slope : slope;
      }
      device::store(t.d_x, (row * vectors + v) * kVector, d_x);
    }
  }
#pragma unroll
  for (int o = 0; o < kOwned; ++o) {
    const std::int64_t v = mine * lanes + lane + o * std::int64_t{lanes} * rows;
    if (v >= vectors) break;
    const std::int64_t at = blockIdx.x * t.n.width + v * kVector;
    for (int e = 0; e < kVector; ++e) {
      if (t.weight) t.weight[at + e] = weight[o][e];
      if (t.bias) t.bias[at + e] = bias[o][e];
    }
  }
}

template <int kOwned>
void start_pass(const char* op, const Task& t, bool accumulate, const Grid& grid) {
  const auto pass = [&](auto centred) {
    start(op, accumulate ? one_pass<kOwned, true, centred()> : one_pass<kOwned, false, centred()>,
          grid, t);
  };
  if (t.n.centred)
    pass(std::true_type{});
  else
    pass(std::false_type{});
}

}  // namespace

bool gradients_in_one_pass(const char* op, const Norm& n, const Span& d_y, bool accumulate,
                           const Span& d_x, const NormPartials& sums) {
  for (const Span& span : {n.x, d_y, d_x})
    if (span.storage == device::Storage::fp32) return false;
  const std::size_t bytes = row_bytes(n.width, accumulate);
  // Of the rows at work; those that come have as many.
  const std::size_t half = (device::most_shared_bytes() - sizeof(Beside)) / 2;
  if (!n.vectors || bytes > half || n.width > kMostLanes * kGroups * kVector) return false;
  int lanes = kWarp;
  while (n.width > std::int64_t{lanes} * kGroups * kVector) lanes *= 2;
  const int rows = std::min(static_cast<int>(half / bytes), kMostThreads / lanes);
  Grid grid = block_each(sums.count, lanes * rows,
                         2 * static_cast<std::size_t>(rows) * bytes + sizeof(Beside));
  grid.threads = dim3(static_cast<unsigned>(lanes), static_cast<unsigned>(rows));
  const Task t{n, d_y, d_x, sums.weight, sums.bias};
  const std::int64_t owned = ceil_divide(n.width / kVector, std::int64_t{lanes} * rows);
  if (owned <= 1)
    start_pass<1>(op, t, accumulate, grid);
  else if (owned <= 2)
    start_pass<2>(op, t, accumulate, grid);
  else
    start_pass<kGroups>(op, t, accumulate, grid);
  return true;
}

}  // namespace plimsoll::kernels::cuda::norm
