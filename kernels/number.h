// 16-bit floating point, bit by bit, the same on every machine.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace plimsoll::kernels {

struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};

inline float widened(float x) {
  return x;
}
inline float widened(Bf16 x) {
  return std::bit_cast<float>(std::uint32_t{x.bits} << 16);
}
// A fp16 exponent is 112 less than fp32's of the same bits; the product also makes subnormals
// normal, exactly. Inf and NaN keep the largest exponent.
inline float widened(Fp16 x) {
  const std::uint32_t sign = std::uint32_t{x.bits & 0x8000u} << 16;
  const float scaled = std::bit_cast<float>((x.bits & 0x7fffu) << 13) * 0x1p112f;
  const std::uint32_t special = (x.bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | sign);
}

// Round to nearest, ties to even; NaN stays NaN (quiet, sign kept), too large becomes inf.
template <class T>
T narrowed(float x);

template <>
inline float narrowed<float>(float x) {
  return x;
}
template <>
inline Bf16 narrowed<Bf16>(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const std::uint32_t nan = (u >> 16) | 0x40u;
  return {static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}
template <>
inline Fp16 narrowed<Fp16>(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  std::uint32_t r = 0;
  if (magnitude > 0x7f800000u) {
    r = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // 65520: halfway between 65504 and 65536
    r = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds to multiples of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    r = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u;
  } else {
    r = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return {static_cast<std::uint16_t>(r | sign)};
}

// Rounds up or down with the probability that makes the expectation exact; `random` is uniform.
// What the type holds exactly is kept; inf and NaN as `narrowed`.
inline Bf16 stochastically_narrowed(Bf16, float x, std::uint32_t random) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7f800000u) == 0x7f800000u) return narrowed<Bf16>(x);
  return {static_cast<std::uint16_t>((u + (random >> 16)) >> 16)};
}
inline Fp16 stochastically_narrowed(Fp16, float x, std::uint32_t random) {
  if (!std::isfinite(x) || x == 0) return narrowed<Fp16>(x);
  const double spacing = std::ldexp(1.0, std::max(std::ilogb(x), -14) - 10);
  const double steps = std::abs(static_cast<double>(x)) / spacing;
  const double down = std::floor(steps);
  const double up = steps - down > random * 0x1p-32 ? 1 : 0;
  return narrowed<Fp16>(std::copysign(static_cast<float>((down + up) * spacing), x));
}
inline float stochastically_narrowed(float, float x, std::uint32_t) {
  return x;
}

}  // namespace plimsoll::kernels
