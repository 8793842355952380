// A norm's backward with the gradients of its parameters, of rows in 16 bits, in one pass.
//
// Thread mapping: block p of P makes d_x of rows p, p + P, p + 2P, … and keeps their part of the
// parameters' gradients, which is partial p of row_sums.cu. A wide row belongs to the whole block,
// whose threads keep the sums of their columns in registers. Of narrow rows a block has kAtOnce at
// a time, a warp for each; they pass through shared memory, where a thread for each eight columns
// adds them one after another.
// Memory: x and d_y are read once (d_x too where it accumulates), d_x is written once: 6 bytes an
// element, where a pass for d_x and another for the parameters read 4 more. The next row is on its
// way while one is at work.
// Numerics: the sums of a row are norm_backward's tree, those of a column have the order of
// row_sums.cu: all bits are those of the two passes. d_x may be d_y: who writes a row has read it.
#include "kernels/cuda/norm_rows.cuh"

namespace plimsoll::kernels::cuda::norm {

namespace {

struct Task {
  Norm n;
  Span d_y, d_x;
  float *weight, *bias;  // [partials, width], or null
};

// What one row asks of memory.
template <int kGroups, bool kAccumulate, bool kCentred>
struct Fetched {
  Row<kGroups> x, d_y;
  Row<kAccumulate ? kGroups : 0> before;
  Statistics s;

  Fetched() = default;
  __device__ __forceinline__ Fetched(const Task& t, std::int64_t row)
      : x(t.n.x, row, t.n),
        d_y(t.d_y, row, t.n),
        before(t.d_x, row, t.n),
        s{kCentred ? t.n.statistics[2 * row] : 0, t.n.statistics[kCentred ? 2 * row + 1 : row]} {}

  __device__ __forceinline__ Slopes of(const Task& t, int g, std::int64_t c) const {
    return slopes(t.n, x, d_y, s, g, c, kVector);
  }
  // Of eight columns of d_x.
  __device__ __forceinline__ void store(const Task& t, std::int64_t row, int g, std::int64_t c,
                                        const Slopes& v, float mean_g, float mean_gn) const {
    float old[kVector] = {}, d_x[kVector];
    if constexpr (kAccumulate) before.get(g, c, kVector, old);
    for (int e = 0; e < kVector; ++e) {
      const float slope = s.inverse * (v.g[e] - mean_g - v.n[e] * mean_gn);
      d_x[e] = kAccumulate ? old[e] + slope : slope;
    }
    device::store(t.d_x, row * t.n.width + c, d_x);
  }
};

struct Sums {
  float g = 0, gn = 0;
};

// Of d_y · weight, and of that times the normalized x: over the row's threads of one warp.
template <int kGroups, class Fetched>
__device__ __forceinline__ Sums sums_of(const Task& t, const Fetched& row) {
  Sums sums;
  in_row<kGroups>(t.n.width, [&](int g, std::int64_t c, int) {
    const Slopes v = row.of(t, g, c);
    for (int e = 0; e < kVector; ++e) {
      sums.g += v.g[e];
      sums.gn += v.g[e] * v.n[e];
    }
  });
  for (int step = kWarp / 2; step > 0; step /= 2) {
    sums.g += __shfl_xor_sync(device::kAllLanes, sums.g, step);
    sums.gn += __shfl_xor_sync(device::kAllLanes, sums.gn, step);
  }
  return sums;
}

__device__ __forceinline__ void add(const Slopes& v, float* weight, float* bias) {
  for (int e = 0; e < kVector; ++e) {
    weight[e] += v.d[e] * v.n[e];
    bias[e] += v.d[e];
  }
}

__device__ __forceinline__ void keep(const Task& t, std::int64_t column, const float* weight,
                                     const float* bias) {
  const std::int64_t at = blockIdx.x * t.n.width + column;
  for (int e = 0; e < kVector; ++e) {
    if (t.weight) t.weight[at + e] = weight[e];
    if (t.bias) t.bias[at + e] = bias[e];
  }
}

template <int kGroups, bool kAccumulate, bool kCentred>
__global__ void __launch_bounds__(kThreads, 1) gradients_of_wide(Task t) {
  constexpr int kWarps = kThreads / kWarp;
  Sums* const shared = device::dynamic_shared<Sums>();  // rows take turns: [2][kWarps]
  const auto count = static_cast<float>(t.n.width);
  float weight[kGroups][kVector] = {}, bias[kGroups][kVector] = {};
  using RowOf = Fetched<kGroups, kAccumulate, kCentred>;
  RowOf next;
  if (blockIdx.x < t.n.rows) next = RowOf(t, blockIdx.x);
  int turn = 0;
  for (std::int64_t row = blockIdx.x; row < t.n.rows; row += gridDim.x, turn ^= 1) {
    const RowOf now = next;
    if (row + gridDim.x < t.n.rows) next = RowOf(t, row + gridDim.x);
    const Sums mine = sums_of<kGroups>(t, now);
    if (threadIdx.x % kWarp == 0) shared[turn * kWarps + threadIdx.x / kWarp] = mine;
    // A warp writes these again two rows on, which is behind the next barrier.
    __syncthreads();
    Sums all = shared[turn * kWarps];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) {
      all.g += shared[turn * kWarps + w].g;
      all.gn += shared[turn * kWarps + w].gn;
    }
    const float mean_g = kCentred ? all.g / count : 0, mean_gn = all.gn / count;
    in_row<kGroups>(t.n.width, [&](int g, std::int64_t c, int) {
      const Slopes v = now.of(t, g, c);
      now.store(t, row, g, c, v, mean_g, mean_gn);
      add(v, weight[g], bias[g]);
    });
  }
  in_row<kGroups>(t.n.width,
                  [&](int g, std::int64_t c, int) { keep(t, c, weight[g], bias[g]); });
}

constexpr int kAtOnce = kThreads / kWarp;

// Rows of kNarrow columns at most: a thread for each eight of them.
template <int kGroups, bool kAccumulate, bool kCentred>
__global__ void __launch_bounds__(kThreads, 1) gradients_of_narrow(Task t) {
  const std::int64_t vectors = t.n.width / kVector;
  // x and d_y of the rows at hand, [kAtOnce][vectors] each; their statistics.
  uint4* const kept_x = device::dynamic_shared<uint4>();
  uint4* const kept_d_y = kept_x + kAtOnce * vectors;
  auto* const kept = reinterpret_cast<Statistics*>(kept_d_y + kAtOnce * vectors);
  const auto count = static_cast<float>(t.n.width);
  const std::int64_t thread = threadIdx.y * kWarp + threadIdx.x, partials = gridDim.x;
  float weight[kVector] = {}, bias[kVector] = {};
  using RowOf = Fetched<kGroups, kAccumulate, kCentred>;
  RowOf next;
  std::int64_t row = blockIdx.x + threadIdx.y * partials;
  if (row < t.n.rows) next = RowOf(t, row);
  for (std::int64_t first = blockIdx.x; first < t.n.rows; first += kAtOnce * partials) {
    const RowOf now = next;
    const std::int64_t following = row + kAtOnce * partials;
    if (following < t.n.rows) next = RowOf(t, following);
    if (row < t.n.rows) {
      in_row<kGroups>(t.n.width, [&](int g, std::int64_t c, int) {
        kept_x[threadIdx.y * vectors + c / kVector] = now.x.bits(g);
        kept_d_y[threadIdx.y * vectors + c / kVector] = now.d_y.bits(g);
      });
      if (threadIdx.x == 0) kept[threadIdx.y] = now.s;
      const Sums sums = sums_of<kGroups>(t, now);
      const float mean_g = kCentred ? sums.g / count : 0, mean_gn = sums.gn / count;
      in_row<kGroups>(t.n.width, [&](int g, std::int64_t c, int) {
        now.store(t, row, g, c, now.of(t, g, c), mean_g, mean_gn);
      });
    }
    __syncthreads();
    if (thread < vectors)
      for (int r = 0; r < kAtOnce && first + r * partials < t.n.rows; ++r) {
        float x[kVector], d[kVector];
        device::widen_halves(t.n.x, kept_x[r * vectors + thread], x);
        device::widen_halves(t.d_y, kept_d_y[r * vectors + thread], d);
        const Statistics s = kept[r];
        for (int e = 0; e < kVector; ++e) {
          weight[e] += d[e] * ((x[e] - s.mean) * s.inverse);
          bias[e] += d[e];
        }
      }
    __syncthreads();
    row = following;
  }
  if (thread < vectors) keep(t, thread * kVector, weight, bias);
}

template <int kGroups, bool kCentred>
void start_pass(const char* op, const Task& t, bool accumulate, std::int64_t partials) {
  if (t.n.width > kNarrow)
    return start(op,
                 accumulate ? gradients_of_wide<kGroups, true, kCentred>
                            : gradients_of_wide<kGroups, false, kCentred>,
                 block_each(partials, kThreads, 2 * kThreads / kWarp * sizeof(Sums)), t);
  Grid grid = block_each(partials, kThreads,
                         kAtOnce * (4 * static_cast<std::size_t>(t.n.width) + sizeof(Statistics)));
  grid.threads = dim3(kWarp, kAtOnce);
  start(op,
        accumulate ? gradients_of_narrow<kGroups, true, kCentred>
                   : gradients_of_narrow<kGroups, false, kCentred>,
        grid, t);
}

}  // namespace

bool gradients_in_one_pass(const char* op, const Norm& n, const Span& d_y, bool accumulate,
                           const Span& d_x, const NormPartials& sums) {
  bool taken = false;
  with_groups(n, {n.x, d_y, d_x}, [&](auto groups) {
    if constexpr (groups() > 0) {
      const Task t{n, d_y, d_x, sums.weight, sums.bias};
      if (n.centred)
        start_pass<groups(), true>(op, t, accumulate, sums.count);
      else
        start_pass<groups(), false>(op, t, accumulate, sums.count);
      taken = true;
    }
  });
  return taken;
}

}  // namespace plimsoll::kernels::cuda::norm
