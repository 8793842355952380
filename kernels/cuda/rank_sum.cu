// The canonical sum of several ranks' buffers into one or several of them.
//
// Thread mapping: a thread takes eight consecutive elements of all ranks (one where a buffer is not
// aligned to 16 bytes, and at the end), then those a grid further on.
// Memory: one read of an element for each rank, one write for each result.
// Numerics: fp32 (fp64 of fp64) in the tree of runtime/comm/communicator.h: n ranks are the largest
// power of two below n, and the rest; rounded once. The host's bits. Up to eight ranks all loads
// are under way at once; above, one at a time.
#include "kernels/cuda/rank_sum.h"

#include "kernels/cuda/operands.h"
#include "kernels/device/elementwise.cuh"

namespace plimsoll::kernels::cuda {

namespace {

using device::kVector;

struct Ranks {
  Span from[kMostSummedRanks];
  Span to[kMostSummedRanks];
  int ranks, results;
  std::int64_t elements;
  bool vectors;
};

struct DoubleRanks {
  const double* from[kMostSummedRanks];
  double* to[kMostSummedRanks];
  int ranks, results;
  std::int64_t elements;
};

constexpr int left_of(int n) {
  int p = 1;
  while (2 * p < n) p *= 2;
  return p;
}

template <int kRanks>
__device__ __forceinline__ void unrolled(const Span* from, std::int64_t i, int n, bool vectors,
                                         float* sum) {
  if constexpr (kRanks == 1) {
    device::load_some(from[0], i, n, vectors, sum);
  } else {
    float right[kVector];
    unrolled<left_of(kRanks)>(from, i, n, vectors, sum);
    unrolled<kRanks - left_of(kRanks)>(from + left_of(kRanks), i, n, vectors, right);
    for (int e = 0; e < kVector; ++e) sum[e] = sum[e] + right[e];
  }
}

constexpr int kLevels = 6;  // complete subtrees of 1, 2, … 32 ranks
static_assert(kMostSummedRanks <= std::size_t{1} << kLevels);

// Complete subtrees wait for their right neighbours, like the bits of a counter. Loops over levels
// are unrolled, so that the subtrees stand in registers.
template <class Sum, int kWidth, class Read>
__device__ __forceinline__ void counted(int ranks, Read read, Sum* sum) {
  Sum waiting[kLevels][kWidth] = {};
  for (int r = 0; r < ranks; ++r) {
    read(r, sum);
    bool carry = true;  // no break: it would turn `level` into an index at run time
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      const bool full = r >> level & 1;
      for (int e = 0; e < kWidth; ++e) {
        const Sum both = waiting[level][e] + sum[e];
        waiting[level][e] = carry && !full ? sum[e] : waiting[level][e];
        sum[e] = carry && full ? both : sum[e];
      }
      carry = carry && full;
    }
  }
  bool any = ranks >> kLevels != 0;  // the whole tree is complete: `sum` has it
#pragma unroll
  for (int level = 0; level < kLevels; ++level) {
    if ((ranks >> level & 1) == 0) continue;
    for (int e = 0; e < kWidth; ++e) sum[e] = any ? waiting[level][e] + sum[e] : waiting[level][e];
    any = true;
  }
}

template <int kRanks>
__device__ void sum_some(const Ranks& k, std::int64_t i, int n, bool vectors) {
  float sum[kVector] = {};
  if constexpr (kRanks > 0) {
    unrolled<kRanks>(k.from, i, n, vectors, sum);
  } else {
    counted<float, kVector>(
        k.ranks, [&](int r, float* to) { device::load_some(k.from[r], i, n, vectors, to); }, sum);
  }
  for (int t = 0; t < k.results; ++t) device::store_some(k.to[t], i, n, vectors, sum);
}

template <int kRanks>
__global__ void __launch_bounds__(kThreads, 2) sum_ranks(Ranks k) {
  const std::int64_t groups = k.vectors ? k.elements / kVector : 0;
  for (std::int64_t g = device::grid_thread(); g < groups; g += device::grid_threads())
    sum_some<kRanks>(k, g * kVector, kVector, true);
  for (std::int64_t i = groups * kVector + device::grid_thread(); i < k.elements;
       i += device::grid_threads())
    sum_some<kRanks>(k, i, 1, false);
}

__global__ void __launch_bounds__(kThreads, 2) sum_double_ranks(DoubleRanks k) {
  for (std::int64_t i = device::grid_thread(); i < k.elements; i += device::grid_threads()) {
    double sum = 0;
    counted<double, 1>(
        k.ranks, [&](int r, double* to) { to[0] = k.from[r][i]; }, &sum);
    for (int t = 0; t < k.results; ++t) k.to[t][i] = sum;
  }
}

using Kernel = void (*)(Ranks);
Kernel kernel_of(std::size_t ranks) {
  switch (ranks) {
    case 2:
      return sum_ranks<2>;
    case 3:
      return sum_ranks<3>;
    case 4:
      return sum_ranks<4>;
    case 5:
      return sum_ranks<5>;
    case 6:
      return sum_ranks<6>;
    case 7:
      return sum_ranks<7>;
    case 8:
      return sum_ranks<8>;
    default:
      return sum_ranks<0>;
  }
}

void sum_doubles(std::span<const void* const> ranks, std::span<void* const> to,
                 std::int64_t count) {
  DoubleRanks k{};
  k.ranks = static_cast<int>(ranks.size());
  k.results = static_cast<int>(to.size());
  k.elements = count;
  for (std::size_t r = 0; r < ranks.size(); ++r) k.from[r] = static_cast<const double*>(ranks[r]);
  for (std::size_t t = 0; t < to.size(); ++t) k.to[t] = static_cast<double*>(to[t]);
  start("rank sum", sum_double_ranks, strided_grid(count), k);
}

}  // namespace

void rank_sum(std::span<const void* const> ranks, std::span<void* const> to, DType dtype,
              std::int64_t count) {
  check(ranks.size() <= kMostSummedRanks && to.size() <= kMostSummedRanks, ErrorKind::unsupported,
        [&] {
          return "a GPU adds the buffers of at most " + std::to_string(kMostSummedRanks) +
                 " ranks, not " + std::to_string(ranks.size());
        });
  if (count == 0 || ranks.empty()) return;
  if (dtype == DType::fp64) return sum_doubles(ranks, to, count);
  Ranks k{};
  k.ranks = static_cast<int>(ranks.size());
  k.results = static_cast<int>(to.size());
  k.elements = count;
  k.vectors = true;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const ConstTensorView view{ranks[r], dtype, {count}};
    k.from[r] = span_of(view);
    k.vectors = k.vectors && aligned({view});
  }
  for (std::size_t t = 0; t < to.size(); ++t) {
    const TensorView view{to[t], dtype, {count}};
    k.to[t] = span_of(view);
    k.vectors = k.vectors && aligned({view});
  }
  start("rank sum", kernel_of(ranks.size()),
        strided_grid(k.vectors ? ceil_divide(count, kVector) : count), k);
}

}  // namespace plimsoll::kernels::cuda
