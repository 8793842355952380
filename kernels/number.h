// Floating point of 16 and of 8 bits, bit by bit, the same on every machine. Everything is
// constexpr: nvcc takes such functions for device code too (--expt-relaxed-constexpr), so that host
// and device share them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace plimsoll::kernels {

struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};
// The two formats of "FP8 Formats for Deep Learning" (Micikevicius et al., arXiv 2209.05433): four
// bits of exponent and three of mantissa, without inf; five and two, which is the high byte of
// fp16.
struct E4m3 {
  std::uint8_t bits;
};
struct E5m2 {
  std::uint8_t bits;
};

constexpr float widened(float x) {
  return x;
}
constexpr float widened(Bf16 x) {
  return std::bit_cast<float>(std::uint32_t{x.bits} << 16);
}
// A fp16 exponent is 112 less than fp32's of the same bits; the product also makes subnormals
// normal, exactly. Inf and NaN keep the largest exponent.
constexpr float widened(Fp16 x) {
  const std::uint32_t sign = std::uint32_t{x.bits & 0x8000u} << 16;
  const float scaled = std::bit_cast<float>((x.bits & 0x7fffu) << 13) * 0x1p112f;
  const std::uint32_t special = (x.bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | sign);
}

// A code of E4m3 has an exponent 120 less than fp32's of the same bits; both as for fp16.
constexpr float widened(E4m3 x) {
  const std::uint32_t sign = std::uint32_t{x.bits & 0x80u} << 24;
  const float scaled = std::bit_cast<float>((x.bits & 0x7fu) << 20) * 0x1p120f;
  const std::uint32_t special = (x.bits & 0x7fu) == 0x7fu ? 0x7fc00000u : 0u;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | sign);
}
constexpr float widened(E5m2 x) {
  return widened(Fp16{static_cast<std::uint16_t>(x.bits << 8)});
}

// Round to nearest, ties to even; NaN stays NaN (quiet, sign kept), too large becomes inf.
template <class T>
constexpr T narrowed(float x);

template <>
constexpr float narrowed<float>(float x) {
  return x;
}
template <>
constexpr Bf16 narrowed<Bf16>(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const std::uint32_t nan = (u >> 16) | 0x40u;
  return {static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}
template <>
constexpr Fp16 narrowed<Fp16>(float x) {
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

// In 8 bits what is too large becomes the largest number, inf too, as cvt.rn.satfinite has it; a
// NaN is 0x7f.
//
// `bias`: how much less an exponent is than fp32's; numbers below `normal` are multiples of the
// spacing of fp32 numbers from `shift` on.
constexpr std::uint8_t narrowed_to_byte(float x, int mantissa, std::uint32_t bias, float normal,
                                        float shift, float largest, std::uint8_t code) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (u >> 24) & 0x80u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fu;
  const int dropped = 23 - mantissa;
  std::uint32_t r = code;
  if (magnitude < std::bit_cast<std::uint32_t>(normal)) {
    const float shifted = std::bit_cast<float>(magnitude) + shift;
    r = std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(shift);
  } else if (magnitude < std::bit_cast<std::uint32_t>(largest)) {
    const std::uint32_t half = (1u << (dropped - 1)) - 1;
    r = (magnitude - (bias << 23) + half + ((magnitude >> dropped) & 1u)) >> dropped;
  }
  return static_cast<std::uint8_t>(r | sign);
}
inline constexpr float kLargestE4m3 = 448, kLargestE5m2 = 57344;
template <>
constexpr E4m3 narrowed<E4m3>(float x) {
  return {narrowed_to_byte(x, 3, 120, 0x1p-6f, 0x1p14f, kLargestE4m3, 0x7e)};
}
template <>
constexpr E5m2 narrowed<E5m2>(float x) {
  return {narrowed_to_byte(x, 2, 112, 0x1p-14f, 0x1p7f, kLargestE5m2, 0x7b)};
}

// Rounds up or down with the probability that makes the expectation exact; `random` is uniform.
// What the type holds exactly is kept; inf and NaN as `narrowed`.
constexpr Bf16 stochastically_narrowed(Bf16, float x, std::uint32_t random) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7f800000u) == 0x7f800000u) return narrowed<Bf16>(x);
  return {static_cast<std::uint16_t>((u + (random >> 16)) >> 16)};
}
constexpr Fp16 stochastically_narrowed(Fp16, float x, std::uint32_t random) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x), magnitude = u & 0x7fffffffu;
  if (magnitude >= 0x7f800000u || magnitude == 0) return narrowed<Fp16>(x);
  // Neighbours are 2^(e - 10) apart where |x| lies in [2^e, 2^(e + 1)), and never nearer than
  // 2^-24.
  const std::uint64_t biased = std::max(magnitude >> 23, 113u);  // e + 127
  const double spacing = std::bit_cast<double>((biased + 1023 - 127 - 10) << 52);
  const double per_spacing = std::bit_cast<double>((127 + 10 + 1023 - biased) << 52);
  const double steps = static_cast<double>(std::bit_cast<float>(magnitude)) * per_spacing;
  const double down = static_cast<double>(static_cast<std::uint32_t>(steps));  // below 2^11
  const double up = steps - down > random * 0x1p-32 ? 1 : 0;
  const auto rounded = static_cast<float>((down + up) * spacing);
  return narrowed<Fp16>(u >> 31 != 0 ? -rounded : rounded);
}
constexpr float stochastically_narrowed(float, float x, std::uint32_t) {
  return x;
}

}  // namespace plimsoll::kernels
