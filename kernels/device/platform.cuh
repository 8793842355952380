// All that device code asks of CUDA beyond the language, in one file, because there is a second one
// of this name: tests/kernels/emulator runs the same kernels on a machine without a GPU, a fiber
// for each thread. So kernels use nothing that is not here: the built-in indices, barriers,
// shuffles, atomics on int32, __byte_perm, and what follows.
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

// The same in 8 bits, the first in the low byte; what is too large becomes the largest number.
// Hardware before 8.9 has no such conversion.
template <class T>
__device__ __forceinline__ std::uint16_t packed_bytes(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint16_t two;
  if constexpr (std::is_same_v<T, E4m3>)
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
  else
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
  return two;
#else
  return static_cast<std::uint16_t>(narrowed<T>(high).bits << 8 | narrowed<T>(low).bits);
#endif
}

// Tensor cores: c (16 × 8, fp32) += a (16 × 16) · b (16 × 8), T bf16 or fp16. PTX ISA, "Matrix
// fragments for mma.m16n8k16": of a warp's lane, g = lane / 4 and t = lane % 4, two elements a
// word,
//   a: rows g, g + 8, g, g + 8; columns 2t, 2t + 1 in words 0 and 1, 8 more in words 2 and 3
//   b: column g; rows 2t, 2t + 1 in b0, 8 more in b1
//   c: columns 2t, 2t + 1; row g in c[0], c[1], row g + 8 in c[2], c[3]
template <class T>
__device__ void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);
template <>
__device__ __forceinline__ void mma<Bf16>(float (&c)[4], const std::uint32_t (&a)[4],
                                          std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma<Fp16>(float (&c)[4], const std::uint32_t (&a)[4],
                                          std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 × 8 matrices of 16-bit elements from shared memory: lane 8m + r gives the address of row r
// of matrix m (16 bytes, aligned). Word m of a lane is row g, elements 2t and 2t + 1, of matrix m,
// or of its transpose.
template <bool kTransposed>
__device__ __forceinline__ void load_matrices(std::uint32_t (&m)[4], const void* row) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at)
                 : "memory");
}

// Begins to copy 16 bytes to shared memory, or zeros where `there` is false; both aligned, `from`
// valid in either case. They have arrived for the thread after `wait_for_copies`, and for the block
// after the barrier behind it.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool there) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(at), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" : : : "memory");
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
