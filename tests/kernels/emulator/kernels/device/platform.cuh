// Takes the place of kernels/device/platform.cuh (its folder comes first in the include path), so
// that g++ compiles the CUDA kernels and a machine without a GPU runs them: block after block, a
// fiber for each thread. A warp runs as far as it can before the next one begins, and within it a
// lane until a shuffle, in an order that tests vary (tests/kernels/emulator/fibers.h). Every access
// to memory is held against those before it: what no barrier orders is a race, between lanes,
// warps or blocks, whether or not the order at hand shows it (races.h).
//
// What this cannot show: the hardware's own rounding and conversions, alignment faults of ordinary
// loads, speed. Those need the suite `gpu`.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/number.h"
#include "tests/kernels/emulator/fibers.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
// One block runs at a time. The section tells which arrays are shared.
#define __shared__ static __attribute__((section("gpu_shared")))

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

// CUDA math API: the bytes of `a` (0 to 3) and `b` (4 to 7) that four hexadecimal digits choose.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned which) {
  const std::uint64_t both = std::uint64_t{b} << 32 | a;
  std::uint32_t chosen = 0;
  for (int i = 0; i < 4; ++i)
    chosen |= static_cast<std::uint32_t>(both >> 8 * (which >> 4 * i & 7u) & 0xffu) << 8 * i;
  return chosen;
}

namespace plimsoll::kernels::device {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

inline float wide(Bf16 x) {
  return widened(x);
}
inline float wide(Fp16 x) {
  return widened(x);
}
template <class T>
std::uint32_t packed(float low, float high) {
  return std::uint32_t{narrowed<T>(high).bits} << 16 | narrowed<T>(low).bits;
}

template <class T>
std::uint16_t packed_bytes(float low, float high) {
  return static_cast<std::uint16_t>(narrowed<T>(high).bits << 8 | narrowed<T>(low).bits);
}

// Fragments as kernels/device/platform.cuh describes them.
template <class T>
float element(std::uint32_t word, int which) {
  return widened(T{static_cast<std::uint16_t>(which == 0 ? word & 0xffffu : word >> 16)});
}
template <class T>
void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  struct Mine {
    std::uint32_t a[4], b[2];
  };
  const Mine mine{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  std::memcpy(emulator::warp_slot(emulator::lane()), &mine, sizeof(mine));
  emulator::warp_barrier(emulator::Together::mma);
  const auto of = [](int lane) {
    Mine other;
    std::memcpy(&other, emulator::warp_slot(lane), sizeof(other));
    return other;
  };
  const int g = emulator::lane() / 4, t = emulator::lane() % 4;
  float sum[4] = {c[0], c[1], c[2], c[3]};
  for (int k = 0; k < 16; ++k) {
    const int lane = k % 8 / 2;  // in its row or column
    const Mine row = of(4 * g + lane);
    for (int i = 0; i < 4; ++i) {
      const float left = element<T>(row.a[k / 8 * 2 + i / 2], k % 2);
      const Mine column = of(4 * (2 * t + i % 2) + lane);
      sum[i] += left * element<T>(column.b[k / 8], k % 2);
    }
  }
  emulator::warp_barrier(emulator::Together::mma);
  std::memcpy(c, sum, sizeof(sum));
}

template <bool kTransposed>
void load_matrices(std::uint32_t (&m)[4], const void* row) {
  std::memcpy(emulator::warp_slot(emulator::lane()), &row, sizeof(row));
  emulator::warp_barrier(emulator::Together::load_matrices);
  const int g = emulator::lane() / 4, t = emulator::lane() % 4;
  for (int i = 0; i < 4; ++i) {
    std::uint16_t two[2];
    for (int e = 0; e < 2; ++e) {
      const std::uint16_t* from;
      std::memcpy(&from, emulator::warp_slot(8 * i + (kTransposed ? 2 * t + e : g)), sizeof(from));
      emulator::expect_aligned(from);
      two[e] = from[kTransposed ? g : 2 * t + e];
    }
    m[i] = std::uint32_t{two[1]} << 16 | two[0];
  }
  emulator::warp_barrier(emulator::Together::load_matrices);
}

inline void copy_async(void* to, const void* from, bool there) {
  emulator::expect_aligned(to);
  emulator::expect_aligned(from);
  emulator::queue_copy(to, from, there);
}
inline void wait_for_copies() {
  emulator::run_copies();
}

template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(emulator::shared_memory());
}

struct Grid {
  dim3 blocks, threads;
  std::size_t shared_bytes = 0;
};

template <class... Parameters, class... Arguments>
void start(const char* op, void (*kernel)(Parameters...), const Grid& grid,
           const Arguments&... arguments) {
  cuda::current_launch();
  emulator::run(op, grid.blocks, grid.threads, grid.shared_bytes,
                [&] { kernel(Parameters(arguments)...); });
}

}  // namespace plimsoll::kernels::device
