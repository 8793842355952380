// A thread's part of a row of a norm: what norms.cu and norm_gradients.cu share.
//
// A row of up to kNarrow elements belongs to a warp, a wider one to a block of 256 threads; a
// thread takes every 32nd (256th) group of eight elements, the same ones in every pass.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/operands.h"
#include "kernels/device/reduce.cuh"

namespace plimsoll::kernels::cuda::norm {

using device::kVector;
using device::kWarp;

inline constexpr std::int64_t kNarrow = 1024;
inline constexpr int kMostGroups = 4;  // a thread's of a row in registers: 8192 elements of a block

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
  Row() = default;
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
  // Of 16 bits, as fetched.
  __device__ __forceinline__ const uint4& bits(int g) const { return kept_[g]; }

 private:
  Span span_;
  std::int64_t begin_ = 0;
  bool vectors_ = false;
  uint4 kept_[kGroups > 0 ? kGroups : 1];
};

// Of eight elements: d_y, the normalized x, and d_y · weight.
struct Slopes {
  float d[kVector], n[kVector], g[kVector];
};
template <int kGroups>
__device__ __forceinline__ Slopes slopes(const Norm& n, const Row<kGroups>& x_row,
                                         const Row<kGroups>& d_y, const Statistics& s, int g,
                                         std::int64_t c, int some) {
  float x[kVector], w[kVector];
  Slopes result;
  x_row.get(g, c, some, x);
  d_y.get(g, c, some, result.d);
  device::load_some(n.weight, c, some, n.vectors, w);
  for (int e = 0; e < kVector; ++e) {
    result.n[e] = (x[e] - s.mean) * s.inverse;
    result.g[e] = result.d[e] * (n.offset + w[e]);
  }
  return result;
}

// start(std::integral_constant): how many groups of a row of these operands a thread keeps.
template <class Start>
void with_groups(const Norm& n, std::initializer_list<Span> rows, Start start) {
  const bool halves = n.vectors && std::ranges::all_of(rows, [](const Span& span) {
                        return span.storage != device::Storage::fp32;
                      });
  const std::int64_t threads = n.width > kNarrow ? kThreads : kWarp;
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

// d_x and the partial sums of the parameters' gradients at once, or false and nothing done: rows
// that are wide, not aligned or of 32 bits. n.rows > 0. In norm_gradients.cu.
bool gradients_in_one_pass(const char* op, const Norm& n, const Span& d_y, bool accumulate,
                           const Span& d_x, const NormPartials& sums);

}  // namespace plimsoll::kernels::cuda::norm
