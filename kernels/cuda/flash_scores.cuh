// A warp's tile of scores on its way through the softmax, in the registers of flash_mma.cu: element
// e of tile n is row e / 2 · 8 and column n · 8 + e % 2 of the lane's.
#pragma once

#include "kernels/cuda/flash.h"
#include "kernels/device/reduce.cuh"
#include "kernels/device/soft_cap.cuh"

namespace plimsoll::kernels::cuda {

using device::kAllLanes;
using device::kMinusInfinity;

inline constexpr float kLog2e = 1.4426950408889634f;

// Over the four lanes that share a row.
__device__ inline float quad_sum(float v) {
  v += __shfl_xor_sync(kAllLanes, v, 1);
  return v + __shfl_xor_sync(kAllLanes, v, 2);
}
__device__ inline float quad_most(float v) {
  v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, 1));
  return fmaxf(v, __shfl_xor_sync(kAllLanes, v, 2));
}

// Of the lane's two rows.
struct Running {
  float most[2] = {kMinusInfinity, kMinusInfinity};  // of q · k, not scaled; of capped scores
  float total[2] = {0, 0};  // of the lane's columns
};

// Products become capped scores.
template <int kTiles>
__device__ __forceinline__ void cap_scores(const AttentionShape& s, float (&scores)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) scores[n][e] = device::soft_capped(scores[n][e] * s.scale, s.cap);
}

// Hides what the mask hides in a tile of scores.
template <int kTiles>
__device__ __forceinline__ void hide(const AttentionShape& s, std::int64_t i, std::int64_t j,
                                     float (&scores)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (!sees(s, i + e / 2 * 8, j + n * 8 + e % 2)) scores[n][e] = kMinusInfinity;
}

// Scores become exp(scale · (score - maximum)); what was summed before shrinks to the new maximum.
template <int kTiles, int kColumns>
__device__ __forceinline__ void exponentials(float factor, float (&scores)[kTiles][4], Running& r,
                                             float (&sum)[kColumns][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = r.most[half];
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
      most = fmaxf(most, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
    most = quad_most(most);
    const float base = most == kMinusInfinity ? 0.0f : most;  // nothing seen yet
    const float shrink = exp2f((r.most[half] - base) * factor);
    r.most[half] = most;
    r.total[half] *= shrink;
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        scores[n][e] = exp2f((scores[n][e] - base) * factor);
        r.total[half] += scores[n][e];
      }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      sum[n][2 * half] *= shrink;
      sum[n][2 * half + 1] *= shrink;
    }
  }
}

}  // namespace plimsoll::kernels::cuda
