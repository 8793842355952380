// Dropout as the host's: the number of an element follows from its global index.
#pragma once

#include "kernels/device/platform.cuh"

namespace plimsoll::kernels::device {

// A word of a block without an index into registers.
__device__ __forceinline__ std::uint32_t word_of(const Philox& block, std::uint32_t which) {
  const std::uint32_t low = which & 1 ? block[1] : block[0], high = which & 1 ? block[3] : block[2];
  return which & 2 ? high : low;
}

// Built on the host by `dropper_of`.
struct Dropper {
  std::uint64_t bound;  // numbers below it, of 2^32, drop
  std::uint64_t first_element;
  RandomKey key;
  float factor;  // of what stays
  bool active;

  // The block that was drawn last: neighbours share it.
  struct State {
    std::uint64_t drawn = ~std::uint64_t{0};
    Philox block{};
  };
  __device__ __forceinline__ float operator()(State& state, std::int64_t i, float v) const {
    if (!active) return v;
    const std::uint64_t at = first_element + static_cast<std::uint64_t>(i);
    if (at / 4 != state.drawn) {
      state.drawn = at / 4;
      state.block = random_block(key, state.drawn);
    }
    return word_of(state.block, static_cast<std::uint32_t>(at % 4)) < bound ? 0.0f : v * factor;
  }
};

}  // namespace plimsoll::kernels::device
