// What norms.cu and norm_gradients.cu share: a norm's operands, and a thread's part of a row.
#pragma once

#include "kernels/cuda/operands.h"

namespace plimsoll::kernels::cuda::norm {

using device::kVector;

// Up to here a row belongs to a warp, from here on to a block of kThreads.
inline constexpr std::int64_t kNarrow = 1024;

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

// d_x and the partial sums of the parameters' gradients at once; false, and nothing done, for rows of
// 32 bits, not aligned, or wider than a block's shared memory takes. In norm_gradients.cu.
bool gradients_in_one_pass(const char* op, const Norm& n, const Span& d_y, bool accumulate,
                           const Span& d_x, const NormPartials& sums);

}  // namespace plimsoll::kernels::cuda::norm
