#include "runtime/io/normal.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <numbers>

#include "models/base/error.h"

namespace plimsoll::runtime::io {

namespace {
constexpr std::size_t kBlocks = 64;  // drawn, then turned into numbers, at once

// (word + 1/2) / 2^32; by halves, which fit fp32.
float unit(std::uint32_t word) {
  return static_cast<float>(static_cast<std::int32_t>(word >> 16)) * 0x1p-16f +
         (static_cast<float>(static_cast<std::int32_t>(word & 0xffff)) + 0.5f) * 0x1p-32f;
}

// ln((word + 1/2) / 2^32), without libm, whose functions neither agree between machines nor stand
// in a loop that the compiler can vectorize. With u = 2^e · m, m in [sqrt(1/2), sqrt(2)):
// ln m = 2 (s + s^3/3 + s^5/5 + …) for s = (m - 1) / (m + 1), |s| < 0.172.
float log_of(std::uint32_t word) {
  const float u = unit(word);
  // 0x3f3504f3: sqrt(1/2), so that the exponent's bits change where m leaves its range.
  const std::int32_t above = std::bit_cast<std::int32_t>(u) - 0x3f3504f3;
  const float e = static_cast<float>(above >> 23);
  const float m = std::bit_cast<float>((above & 0x7fffff) + 0x3f3504f3);
  // Near 1, where ln is all in what u lacks, fp32 has lost that by rounding; 1 - u has not.
  const float less = word >= 0xb504f334 ? -unit(~word) : m - 1;
  const float s = less / (less + 2), s2 = s * s;
  const float series = 1 + s2 * (1 / 3.0f + s2 * (1 / 5.0f + s2 * (1 / 7.0f + s2 * (1 / 9.0f))));
  return e * std::numbers::ln2_v<float> + 2 * s * series;
}

// Cosine and sine of 2 pi (word + 1/2) / 2^32: Taylor's series of what is left, within pi / 4, of
// the nearest quarter turn.
struct Turn {
  float cosine, sine;
};
Turn turn_of(std::uint32_t word) {
  const std::uint32_t quarter = (word + 0x20000000u) >> 30;
  const auto rest = static_cast<std::int32_t>(word - (quarter << 30));
  const float x = (static_cast<float>(rest) + 0.5f) * (std::numbers::pi_v<float> * 0x1p-31f);
  const float x2 = x * x;
  const float s = x * (1 - x2 / 6 * (1 - x2 / 20 * (1 - x2 / 42 * (1 - x2 / 72))));
  const float c = 1 - x2 / 2 * (1 - x2 / 12 * (1 - x2 / 30 * (1 - x2 / 56 * (1 - x2 / 90))));
  const bool odd = (quarter & 1) != 0;
  const float a = odd ? s : c, b = odd ? c : s;
  return {((quarter + 1) & 2) != 0 ? -a : a, (quarter & 2) != 0 ? -b : b};
}

using Words = std::array<std::uint32_t, 2 * kBlocks>;

void turn_into_numbers(const Words& radii, const Words& angles, std::size_t pairs, float* into) {
  std::array<float, 2 * kBlocks> radius;
  for (std::size_t i = 0; i < pairs; ++i) radius[i] = -2 * log_of(radii[i]);
  for (std::size_t i = 0; i < pairs; ++i) radius[i] = std::sqrt(radius[i]);
  for (std::size_t i = 0; i < pairs; ++i) {
    const Turn turn = turn_of(angles[i]);
    into[2 * i] = radius[i] * turn.cosine;
    into[2 * i + 1] = radius[i] * turn.sine;
  }
}
}  // namespace

void standard_normals(const kernels::RandomKey& key, std::uint64_t first_block,
                      std::span<float> into) {
  check(into.size() % 4 == 0, ErrorKind::internal, "normal numbers come in fours");
  Words radii, angles;
  for (std::size_t done = 0; done < into.size(); done += 4 * kBlocks) {
    const std::size_t blocks = std::min(kBlocks, (into.size() - done) / 4);
    for (std::size_t i = 0; i < blocks; ++i) {
      const kernels::Philox words = kernels::random_block(key, first_block + done / 4 + i);
      radii[2 * i] = words[0];
      angles[2 * i] = words[1];
      radii[2 * i + 1] = words[2];
      angles[2 * i + 1] = words[3];
    }
    turn_into_numbers(radii, angles, 2 * blocks, into.data() + done);
  }
}

}  // namespace plimsoll::runtime::io
