// The frequencies of the rotation, computed on the host for every device: another rounding of a
// frequency turns late positions by another angle.
#pragma once

#include <cmath>
#include <numbers>

#include "kernels/layer_kernels.h"

namespace plimsoll::kernels {

// Of pair `index` of `half`. In fp32 throughout, as Transformers (modeling_rope_utils.py: default,
// linear, llama3).
inline float rotary_frequency(const RotaryFrequencies& f, std::int64_t index, std::int64_t half) {
  const float power = static_cast<float>(2 * index) / static_cast<float>(2 * half);
  const float plain = 1 / std::pow(static_cast<float>(f.theta), power);
  if (f.factor == 1) return plain;
  const auto original = static_cast<float>(f.original_positions);
  const auto factor = static_cast<float>(f.factor);
  const auto low = static_cast<float>(f.low_factor), high = static_cast<float>(f.high_factor);
  const float wave = 2 * std::numbers::pi_v<float> / plain;
  if (wave < original / high) return plain;
  if (wave > original / low) return plain / factor;
  const float smooth = (original / wave - low) / (high - low);
  return (1 - smooth) * plain / factor + smooth * plain;
}

}  // namespace plimsoll::kernels
