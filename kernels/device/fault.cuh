// How a kernel notes what the host's twin would throw: kernels/cuda/launch.h.
#pragma once

#include "kernels/device/platform.cuh"

namespace plimsoll::kernels::device {

// Keeps the first one. `faults`: int32 [2], or null.
__device__ __forceinline__ void note_fault(std::int32_t* faults, cuda::Fault fault,
                                           std::int32_t value) {
  if (faults == nullptr) return;
  if (atomicCAS(faults, 0, static_cast<std::int32_t>(fault)) == 0) faults[1] = value;
}

}  // namespace plimsoll::kernels::device
