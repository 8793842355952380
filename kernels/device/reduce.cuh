// Sums over the threads that share a row, in one fixed order, and the merge of streaming softmaxes.
//
// A row belongs to the threads of one threadIdx.y: a warp, or a whole block of blockDim.y = 1.
#pragma once

#include <limits>

#include "kernels/device/platform.cuh"

namespace plimsoll::kernels::device {

inline constexpr int kMostWarps = 32;

// What `add(a, b)` makes of the values of all threads of the row; every thread gets it. `shared`:
// kMostWarps values, used only where a row has several warps.
template <class T, class Add>
__device__ __forceinline__ T over_row(T value, T* shared, Add add) {
  for (int step = kWarp / 2; step > 0; step /= 2)
    value = add(value, __shfl_xor_sync(kAllLanes, value, step));
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  if (warps == 1) return value;
  __syncthreads();  // `shared` may still be read from the last time
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
  __syncthreads();
  T all = shared[0];
  for (int w = 1; w < warps; ++w) all = add(all, shared[w]);
  return all;
}

struct Plus {
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};
struct Larger {
  __device__ __forceinline__ float operator()(float a, float b) const { return a < b ? b : a; }
};

__device__ __forceinline__ float row_sum(float value, float* shared) {
  return over_row(value, shared, Plus{});
}

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// exp(x - most) summed over some x, and their maximum.
struct MaxSum {
  float most = kMinusInfinity;
  float sum = 0;
};

__device__ __forceinline__ MaxSum merged(const MaxSum& a, const MaxSum& b) {
  const float most = a.most < b.most ? b.most : a.most;
  if (most == kMinusInfinity) return {most, a.sum + b.sum};
  return {most, a.sum * expf(a.most - most) + b.sum * expf(b.most - most)};
}

__device__ __forceinline__ MaxSum row_max_sum(const MaxSum& mine, float* shared) {
  // Two passes of one value each: a lane's sum is brought to the row's maximum first.
  const float most = over_row(mine.most, shared, Larger{});
  const float scaled = most == kMinusInfinity ? mine.sum : mine.sum * expf(mine.most - most);
  return {most, row_sum(scaled, shared)};
}

}  // namespace plimsoll::kernels::device
