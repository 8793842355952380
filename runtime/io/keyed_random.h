// Streams of random words that are told apart by name.
#pragma once

#include <string_view>

#include "kernels/philox.h"

namespace plimsoll::runtime::io {

// The seed, and 64-bit FNV-1a (Fowler, Noll, Vo) of the name as step and stream: far from the small
// numbers that a step's own random numbers (dropout) have there.
constexpr kernels::RandomKey keyed(std::string_view name, std::uint64_t seed) {
  std::uint64_t h = 0xcbf29ce484222325;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return {.seed = seed,
          .step = static_cast<std::uint32_t>(h >> 32),
          .stream = static_cast<std::uint32_t>(h)};
}

}  // namespace plimsoll::runtime::io
