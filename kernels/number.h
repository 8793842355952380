// 16-bit floating point, bit by bit, the same on every machine. Everything is constexpr: nvcc takes
// such functions for device code too (--expt-relaxed-constexpr), so that host and device share
// them.
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
