// A number that changes when a byte of a file does: against damage, not against attackers.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace plimsoll::runtime::io {

// Over words of 8 bytes in their order, the last one filled up with 0. With one word changed, all
// others the same, the value is another one: each step is a bijection of the word and of the value
// so far (xor, times the odd number nearest to 2^64 over the golden ratio, xor with its own upper
// half).
class Digest {
 public:
  void add(std::span<const std::byte> bytes) {
    bytes_ += bytes.size();
    while (!bytes.empty()) {
      if (held_ == 0)
        for (; bytes.size() >= kWord; bytes = bytes.subspan(kWord)) mix(bytes.data());
      const std::size_t n = std::min(kWord - held_, bytes.size());
      std::copy_n(bytes.begin(), n, word_.begin() + static_cast<std::ptrdiff_t>(held_));
      bytes = bytes.subspan(n);
      held_ += n;
      if (held_ < kWord) continue;
      mix(word_.data());
      held_ = 0;
    }
  }
  // Of all that was added, its length included.
  std::uint64_t value() const {
    Digest whole = *this;
    if (held_ > 0) {
      std::fill(whole.word_.begin() + static_cast<std::ptrdiff_t>(held_), whole.word_.end(),
                std::byte{0});
      whole.mix(whole.word_.data());
    }
    std::array<std::byte, kWord> length{};
    std::memcpy(length.data(), &bytes_, kWord);
    whole.mix(length.data());
    return whole.value_;
  }

 private:
  static constexpr std::size_t kWord = 8;
  void mix(const std::byte* at) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, kWord);
    value_ = (value_ ^ word) * 0x9E3779B97F4A7C15;
    value_ ^= value_ >> 32;
  }
  std::uint64_t value_ = 0, bytes_ = 0;
  std::size_t held_ = 0;
  std::array<std::byte, kWord> word_{};
};

}  // namespace plimsoll::runtime::io
