// Takes the place of kernels/device/platform.cuh (its folder comes first in the include path), so
// that g++ compiles the CUDA kernels and a machine without a GPU runs them: block after block, a
// fiber for each thread. A warp runs as far as it can before the next one begins, and within it a
// lane until a shuffle; a missing barrier therefore shows, because the first warp is far ahead of
// the last, or, backwards, the last ahead of the first.
//
// What this cannot show: the hardware's own rounding and conversions, alignment faults, races
// between blocks, speed. Those need the suite `gpu`.
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
#define __shared__ static  // one block runs at a time

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

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
