// Optimizer states in 8 bits: a code for each value, and for each block of values a scale, the
// largest of their magnitudes.
//
// Dettmers, Lewis, Shleifer, Zettlemoyer, "8-bit optimizers via block-wise quantization", arXiv
// 2110.02861. Codes mean what they mean to bitsandbytes 0.50.2 (functional.py, create_dynamic_map;
// backends/default/ops.py, quantize_blockwise), bit for bit.
#pragma once

#include <cstdint>

namespace plimsoll::kernels {

inline constexpr std::int64_t kStateBlock = 256;  // values that share a scale

struct DynamicMap {
  float value[256];  // of each code, ascending
  float middle[255];  // between a code and the next
};

namespace detail {
// Of `count` points from 0.1 to 1, as torch.linspace computes them: from either end, a product and
// a sum rounded once.
constexpr float boundary(int at, int count) {
  const double step = (1.0f - 0.1f) / static_cast<float>(count - 1);
  return at < count / 2 ? static_cast<float>(static_cast<double>(0.1f) + step * at)
                        : static_cast<float>(1.0 - step * (count - 1 - at));
}
}  // namespace detail

// Decades from 1e-6 to 1 in equal steps, twice as many in each as in the one below it, of which the
// middles are taken; 0, and 1. With a sign (a first moment) half as many on either side of 0.
constexpr DynamicMap dynamic_map(bool with_sign) {
  constexpr double kDecades[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
  DynamicMap map{};
  const int zero = with_sign ? 127 : 0;
  int at = zero;
  for (int decade = 0; decade < 7; ++decade) {
    const int steps = 1 << (with_sign ? decade : decade + 1);
    for (int i = 0; i < steps; ++i) {
      const float middle =
          (detail::boundary(i, steps + 1) + detail::boundary(i + 1, steps + 1)) / 2;
      const float value = static_cast<float>(kDecades[decade]) * middle;
      ++at;
      map.value[at] = value;
      if (with_sign) map.value[2 * zero - at] = -value;
    }
  }
  map.value[255] = 1;
  for (int i = 0; i < 255; ++i) map.middle[i] = (map.value[i] + map.value[i + 1]) / 2;
  return map;
}
inline constexpr DynamicMap kSignedMap = dynamic_map(true), kUnsignedMap = dynamic_map(false);

// By what a block's values are multiplied before their codes are looked up.
constexpr float inverse_scale(float scale) {
  return 1 / (scale < 1e-38f ? 1e-38f : scale);
}
// The nearest code to value · inverse; of two that are equally near the lower one.
constexpr std::uint8_t nearest_code(const float* middles, float value, float inverse) {
  const float scaled = value * inverse;
  int code = 0;
  for (int step = 128; step > 0; step /= 2)
    if (middles[code + step - 1] < scaled) code += step;
  return static_cast<std::uint8_t>(code);
}

}  // namespace plimsoll::kernels
