// All that device code asks of CUDA beyond the language, in one file, because there is a second one
// of this name: tests/kernels/emulator runs the same kernels on a machine without a GPU, a fiber
// for each thread. So kernels use nothing that is not here: the built-in indices, barriers,
// shuffles, atomics on int32, and what follows.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/number.h"

namespace plimsoll::kernels::device {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ float wide(Bf16 x) {
  return widened(x);
}
__device__ __forceinline__ float wide(Fp16 x) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
  return value;
}

// Two values rounded to nearest even, the first in the low half. The hardware's NaN has no payload;
// all else is `narrowed` of kernels/number.h.
template <class T>
__device__ std::uint32_t packed(float low, float high);
template <>
__device__ __forceinline__ std::uint32_t packed<Bf16>(float low, float high) {
  std::uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
template <>
__device__ __forceinline__ std::uint32_t packed<Fp16>(float low, float high) {
  std::uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// The block's dynamic shared memory, aligned to 16 bytes.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ uint4 shared_words[];
  return reinterpret_cast<T*>(shared_words);
}

struct Grid {
  dim3 blocks, threads;
  std::size_t shared_bytes = 0;
};

inline void check_cuda(cudaError_t status, const char* what) {
  check(status == cudaSuccess, ErrorKind::device,
        [&] { return std::string(what) + ": " + cudaGetErrorString(status); });
}

// Queues a kernel on the thread's stream. An empty grid is no launch.
template <class... Parameters, class... Arguments>
void start(const char* op, void (*kernel)(Parameters...), const Grid& grid,
           const Arguments&... arguments) {
  const cuda::Launch& launch = cuda::current_launch();
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
  if (grid.shared_bytes > (48 << 10))  // above this a kernel has to ask (CUDA programming guide)
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(grid.shared_bytes)),
               op);
  kernel<<<grid.blocks, grid.threads, grid.shared_bytes, launch.stream>>>(Parameters(arguments)...);
  check_cuda(cudaGetLastError(), op);
}

}  // namespace plimsoll::kernels::device
