// Numbers drawn into (-cap, cap): Gemma 2's scores and logits.
#pragma once

#include <cmath>

namespace plimsoll::kernels::host {

inline float soft_capped(float x, float cap) {
  return cap * std::tanh(x / cap);
}
// Of the cap, from its result.
inline float soft_cap_slope(float capped, float cap) {
  const float t = capped / cap;
  return 1 - t * t;
}

}  // namespace plimsoll::kernels::host
