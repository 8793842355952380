// FNV-1a, 64 bits (www.isthe.com/chongo/tech/comp/fnv): the same on every machine.
#pragma once

#include <cstdint>
#include <string_view>

namespace plimsoll::tests {

constexpr std::uint64_t kFnvBasis = 0xcbf29ce484222325u;

// Of what was hashed to `value`, and then these bytes.
constexpr std::uint64_t fnv1a(std::string_view bytes, std::uint64_t value = kFnvBasis) {
  for (const char c : bytes) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return value;
}

}  // namespace plimsoll::tests
