// The gradient's norm: squares by chunk, their total, the clipping factor. No host is asked.
//
// Thread mapping: a warp takes a chunk. Deterministic: 32 lanes fetch 256 elements, the first lane
// adds their squares one after another while the next 256 are under way. Fast: each lane adds every
// 32nd group of eight, and the lanes are added as a tree.
// Memory: one read of an element; 8 bytes read and written for each chunk.
// Numerics: fp64. The square of an fp32 number is exact in fp64, so the deterministic sum has the
// host's bits, wherever chunks are cut between ranks; the fast one does not. A chunk takes at least
// its elements times the latency of an fp64 addition, whatever its width: some 0.5 ms for 65536.
#include <limits>

#include "kernels/cuda/elementwise.h"

namespace plimsoll::kernels::cuda {

namespace {

using device::kVector;
using device::kWarp;
using device::Storage;

constexpr int kWarps = 4;  // chunks of a block
constexpr int kPass = kWarp * kVector;  // elements that a warp fetches at once

struct Chunks {
  Span piece;
  std::int64_t elements, first, chunk;
  double* sums;
};

// Elements of `piece` that lie in chunk `c` of the whole tensor: [begin, end).
struct Part {
  std::int64_t begin, end;
};
__device__ Part part_of(const Chunks& k, std::int64_t c) {
  const std::int64_t begin = c * k.chunk - k.first, end = begin + k.chunk;
  return {begin > 0 ? begin : 0, end < k.elements ? end : k.elements};
}

// Eight elements of the lane, from `at` on; what lies beyond `end` reads as 0.
__device__ void load_lane(const Chunks& k, std::int64_t at, std::int64_t end, float* to) {
  const std::int64_t left = end - at;
  const int n = left <= 0 ? 0 : left < kVector ? static_cast<int>(left) : kVector;
  const auto width = k.piece.storage == Storage::fp32 ? 4 : 2;
  const auto address = reinterpret_cast<std::uintptr_t>(k.piece.data) + at * width;
  device::load_some(k.piece, at, n, address % 16 == 0, to);
}

__global__ void __launch_bounds__(kWarps* kWarp) ordered_squares(Chunks k, std::int64_t from) {
  __shared__ float shared[kWarps][kPass];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const std::int64_t c = from + static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  if (c * k.chunk >= k.first + k.elements) return;  // the whole warp
  float* squares = shared[warp];
  const Part part = part_of(k, c);
  float next[kVector];
  load_lane(k, part.begin + lane * kVector, part.end, next);
  double sum = k.sums[c];
  for (std::int64_t at = part.begin; at < part.end; at += kPass) {
    for (int e = 0; e < kVector; ++e) squares[lane * kVector + e] = next[e];
    __syncwarp();
    load_lane(k, at + kPass + lane * kVector, part.end, next);
    if (lane == 0) {
      const int n = part.end - at < kPass ? static_cast<int>(part.end - at) : kPass;
#pragma unroll 8
      for (int e = 0; e < n; ++e) {
        const double v = squares[e];
        sum += v * v;
      }
    }
    __syncwarp();
  }
  if (lane == 0) k.sums[c] = sum;
}

__global__ void __launch_bounds__(kWarps* kWarp) tree_squares(Chunks k, std::int64_t from) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const std::int64_t c = from + static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  if (c * k.chunk >= k.first + k.elements) return;
  const Part part = part_of(k, c);
  double sum = 0;
  for (std::int64_t at = part.begin + lane * kVector; at < part.end; at += kPass) {
    float v[kVector];
    load_lane(k, at, part.end, v);
    for (int e = 0; e < kVector; ++e) sum += static_cast<double>(v[e]) * static_cast<double>(v[e]);
  }
  for (int step = kWarp / 2; step > 0; step /= 2)
    sum += __shfl_xor_sync(device::kAllLanes, sum, step);
  if (lane == 0) k.sums[c] += sum;
}

__global__ void __launch_bounds__(kThreads)
    ordered_total(const double* sums, std::int64_t n, double* total) {
  __shared__ double shared[kThreads];
  double all = 0;
  for (std::int64_t at = 0; at < n; at += kThreads) {
    if (at + threadIdx.x < n) shared[threadIdx.x] = sums[at + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
      const int count = n - at < kThreads ? static_cast<int>(n - at) : kThreads;
      for (int i = 0; i < count; ++i) all += shared[i];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *total = all;
}

__global__ void clip_factor(const double* squares, float max_norm, float loss_scale, float* norm,
                            float* factor, std::int32_t* overflow) {
  const double sum = *squares;
  const double length = sqrt(sum) / loss_scale;
  const bool finite = sum <= std::numeric_limits<double>::max();  // false of NaN too
  const double bounded = max_norm / (length + 1e-6);
  const double shrink = max_norm > 0 && bounded < 1.0 ? bounded : 1.0;
  *norm = static_cast<float>(length);
  *overflow = finite ? 0 : 1;
  *factor = finite ? static_cast<float>(shrink / loss_scale) : 0.0f;
}

void sum_of_squares(ConstTensorView piece, std::int64_t first, std::int64_t chunk,
                    TensorView sums) {
  const std::int64_t n = piece.elements();
  expect(chunk > 0 && first >= 0 && sums.elements() >= ceil_divide(first + n, chunk),
         "sum_of_squares", "there is a sum for each chunk");
  if (n == 0) return;
  const Chunks k{span_of(piece), n, first, chunk, fp64_of(sums)};
  const std::int64_t from = first / chunk, count = ceil_divide(first + n, chunk) - from;
  start("sum_of_squares", current_launch().mode == Mode::fast ? tree_squares : ordered_squares,
        block_each(ceil_divide(count, kWarps), kWarps * kWarp), k, from);
}

void total(ConstTensorView sums, TensorView total) {
  expect(sums.dtype == DType::fp64, "total", "sums are fp64");
  start("total", ordered_total, block_each(1, kThreads), static_cast<const double*>(sums.data),
        sums.elements(), fp64_of(total));
}

void clip(ConstTensorView squares, float max_norm, float loss_scale, TensorView norm,
          TensorView factor, TensorView overflow) {
  expect(squares.dtype == DType::fp64 && loss_scale > 0, "clip",
         "squares are fp64, the loss scale is above 0");
  start("clip", clip_factor, block_each(1, 1), static_cast<const double*>(squares.data), max_norm,
        loss_scale, fp32_of(norm), fp32_of(factor), int32_of(overflow));
}

}  // namespace

void add_gradient_norm(KernelTable& table) {
  table.sum_of_squares = sum_of_squares;
  table.total = total;
  table.clip = clip;
}

}  // namespace plimsoll::kernels::cuda
