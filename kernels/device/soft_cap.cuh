// kernels/host/soft_cap.h on a device; tanhf's last bits are its own.
#pragma once

#include "kernels/device/platform.cuh"

namespace plimsoll::kernels::device {

__device__ __forceinline__ float soft_capped(float x, float cap) {
  return cap * tanhf(x / cap);
}
__device__ __forceinline__ float soft_cap_slope(float capped, float cap) {
  const float t = capped / cap;
  return 1 - t * t;
}

}  // namespace plimsoll::kernels::device
