// The gradient's norm in two phases, squares by chunk and their totals, then the clipping factor.
// No host is asked, and one launch takes many tensors: they stand in the kernel's parameters.
//
// Thread mapping: deterministic, a warp takes a chunk: 32 lanes fetch 256 elements, the first lane
// adds their squares one after another while the next 256 are under way. Fast: a block of 256 takes
// a chunk, each thread adds every 256th group of eight, and threads are added as a tree. Totals: a
// block for each tensor fetches, its first thread adds.
// Memory: one read of an element; 16 bytes read and written for each chunk.
// Numerics: fp64. The square of an fp32 number is exact in fp64, so that fma rounds as often as a
// product and a sum do, and the deterministic sum has the host's bits, wherever chunks are cut
// between ranks; the fast one does not. A deterministic chunk takes at least its elements times the
// latency of an fp64 addition, some 0.5 ms for 65536, with all other chunks beside it.
#include <limits>

#include "kernels/cuda/elementwise.h"
#include "kernels/device/reduce.cuh"

namespace plimsoll::kernels::cuda {

namespace {

using device::kVector;
using device::kWarp;
using device::Storage;

constexpr int kWarps = 4;  // chunks of a deterministic block
constexpr int kPass = kWarp * kVector;  // elements that a warp fetches at once
constexpr int kMostPieces = 64;  // of one launch: parameters are at most 4 KB
constexpr int kMostEnds = 256;

struct Chunks {
  Span piece;
  std::int64_t elements, first, from;  // from: the first chunk
  double* sums;
};
struct Pieces {
  Chunks of[kMostPieces];
  std::int64_t blocks[kMostPieces];  // of the pieces up to this one
  std::int64_t chunk;
};
static_assert(sizeof(Pieces) <= 4096);

// Elements of a piece that lie in chunk `c` of the whole tensor: [begin, end).
struct Part {
  const Chunks* of;
  std::int64_t c, begin, end;
};
// `sub` of `subs` in this block; empty (end <= begin) behind the last chunk.
__device__ __forceinline__ Part part_of(const Pieces& p, int sub, int subs) {
  int i = 0;
  while (blockIdx.x >= p.blocks[i]) ++i;
  const std::int64_t block = blockIdx.x - (i > 0 ? p.blocks[i - 1] : 0);
  const Chunks& k = p.of[i];
  const std::int64_t c = k.from + block * subs + sub;
  const std::int64_t begin = c * p.chunk - k.first, end = begin + p.chunk;
  return {&k, c, begin > 0 ? begin : 0, end < k.elements ? end : k.elements};
}

// Elements from `at` on to the next multiple of 16 bytes.
__device__ __forceinline__ int to_alignment(const Span& s, std::int64_t at) {
  const int width = s.storage == Storage::fp32 ? 4 : 2;
  const auto address = reinterpret_cast<std::uintptr_t>(s.data) + at * width;
  return static_cast<int>((16 - address % 16) % 16) / width;
}

// Eight elements from `at` on; what lies beyond `end` reads as 0.
__device__ __forceinline__ void load_lane(const Span& s, std::int64_t at, std::int64_t end,
                                          float* to) {
  const std::int64_t left = end - at;
  const int n = left <= 0 ? 0 : left < kVector ? static_cast<int>(left) : kVector;
  device::load_some(s, at, n, to_alignment(s, at) == 0, to);
}

__global__ void __launch_bounds__(kWarps* kWarp) ordered_squares(Pieces p) {
  __shared__ float shared[kWarps][kPass];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const Part part = part_of(p, warp, kWarps);
  if (part.end <= part.begin) return;  // the whole warp
  const Span& piece = part.of->piece;
  float* squares = shared[warp];
  const int head = to_alignment(piece, part.begin);  // first these, then whole vectors
  std::int64_t at = part.begin, until = at + (head > 0 ? head : kPass);
  if (until > part.end) until = part.end;
  float next[kVector];
  load_lane(piece, at + lane * kVector, until, next);
  double sum = part.of->sums[part.c];
  while (at < part.end) {
    for (int e = 0; e < kVector; ++e) squares[lane * kVector + e] = next[e];
    __syncwarp();
    const int n = static_cast<int>(until - at);
    at = until;
    until = at + kPass < part.end ? at + kPass : part.end;
    load_lane(piece, at + lane * kVector, until, next);
    if (lane == 0) {
#pragma unroll 8
      for (int e = 0; e < n; ++e) {
        const double v = squares[e];
        sum = fma(v, v, sum);
      }
    }
    __syncwarp();
  }
  if (lane == 0) part.of->sums[part.c] = sum;
}

__global__ void __launch_bounds__(kThreads) tree_squares(Pieces p) {
  __shared__ double shared[device::kMostWarps];
  const Part part = part_of(p, 0, 1);
  const Span& piece = part.of->piece;
  const int thread = static_cast<int>(threadIdx.x);
  std::int64_t begin = part.begin + to_alignment(piece, part.begin);
  if (begin > part.end) begin = part.end;
  double sum = 0;
  if (part.begin + thread < begin) {
    const double v = device::load_one(piece, part.begin + thread);
    sum = fma(v, v, sum);
  }
#pragma unroll 4
  for (std::int64_t at = begin + thread * kVector; at < part.end; at += kThreads * kVector) {
    float v[kVector];
    load_lane(piece, at, part.end, v);
    for (int e = 0; e < kVector; ++e) {
      const double wide = v[e];
      sum = fma(wide, wide, sum);
    }
  }
  sum = device::over_row(sum, shared, [](double a, double b) { return a + b; });
  if (thread == 0 && part.end > part.begin) part.of->sums[part.c] += sum;
}

struct Ends {
  std::int64_t at[kMostEnds];
  std::int64_t first;  // sum of the first
};

__global__ void __launch_bounds__(kThreads)
    ordered_totals(const double* sums, Ends ends, double* totals) {
  __shared__ double shared[kThreads];
  const std::int64_t begin = blockIdx.x == 0 ? ends.first : ends.at[blockIdx.x - 1];
  const std::int64_t end = ends.at[blockIdx.x];
  double all = 0;
  for (std::int64_t at = begin; at < end; at += kThreads) {
    if (at + threadIdx.x < end) shared[threadIdx.x] = sums[at + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
      const int count = end - at < kThreads ? static_cast<int>(end - at) : kThreads;
      for (int i = 0; i < count; ++i) all += shared[i];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) totals[blockIdx.x] = all;
}

__global__ void __launch_bounds__(1)
    clip_factor(const double* squares, float max_norm, float loss_scale, float* norm, float* factor,
                std::int32_t* overflow) {
  const double sum = *squares;
  const double length = sqrt(sum) / loss_scale;
  const bool finite = sum <= std::numeric_limits<double>::max();  // false of NaN too
  const double bounded = max_norm / (length + 1e-6);
  const double shrink = max_norm > 0 && bounded < 1.0 ? bounded : 1.0;
  *norm = static_cast<float>(length);
  *overflow = finite ? 0 : 1;
  *factor = finite ? static_cast<float>(shrink / loss_scale) : 0.0f;
}

void start_squares(const Pieces& p, int count) {
  if (count == 0) return;
  const bool fast = current_launch().mode == Mode::fast;
  start("sum_of_squares", fast ? tree_squares : ordered_squares,
        block_each(p.blocks[count - 1], fast ? kThreads : kWarps * kWarp), p);
}

void sum_of_squares(std::span<const SquaredPiece> pieces, std::int64_t chunk) {
  const int at_once = current_launch().mode == Mode::fast ? 1 : kWarps;  // chunks of a block
  Pieces p{};
  p.chunk = chunk;
  int count = 0;
  std::int64_t blocks = 0;
  for (const SquaredPiece& piece : pieces) {
    const std::int64_t n = piece.piece.elements(), first = piece.first;
    expect(chunk > 0 && first >= 0 && piece.sums.elements() >= ceil_divide(first + n, chunk),
           "sum_of_squares", "there is a sum for each chunk");
    if (n == 0) continue;
    if (count == kMostPieces) {
      start_squares(p, count);
      count = 0, blocks = 0;
    }
    const std::int64_t from = first / chunk;
    blocks += ceil_divide(ceil_divide(first + n, chunk) - from, at_once);
    p.of[count] = {span_of(piece.piece), n, first, from, fp64_of(piece.sums)};
    p.blocks[count++] = blocks;
  }
  start_squares(p, count);
}

void total(ConstTensorView sums, std::span<const std::int64_t> ends, TensorView totals) {
  expect(sums.dtype == DType::fp64 && totals.elements() == static_cast<std::int64_t>(ends.size()),
         "total", "sums are fp64, and there is a total for each end");
  double* to = fp64_of(totals);
  Ends e{};
  int count = 0;
  std::int64_t before = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    expect(before <= ends[i] && ends[i] <= sums.elements(), "total",
           "ends ascend to the number of sums");
    before = e.at[count++] = ends[i];
    if (count < kMostEnds && i + 1 < ends.size()) continue;
    start("total", ordered_totals, block_each(count, kThreads),
          static_cast<const double*>(sums.data), e, to);
    to += count;
    e.first = before;
    count = 0;
  }
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
