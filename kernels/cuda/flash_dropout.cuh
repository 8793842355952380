// Dropout of scores in the registers of tensor cores.
#pragma once

#include "kernels/cuda/flash.h"
#include "kernels/device/dropper.cuh"

namespace plimsoll::kernels::cuda {

// What dropout makes of four scores of a lane, as their factors: one block of random numbers for
// the four. A block has the numbers of four neighbouring keys of one query, and those lie in lanes
// side by side, so that each lane draws one block and they exchange words. Where rows do not begin
// with a block, each score draws its own.
struct Kept {
  const Flash& f;
  std::int64_t sequence, head;
  bool whole;  // rows begin with a block

  __device__ Kept(const Flash& flash, std::int64_t of_sequence, std::int64_t of_head)
      : f(flash),
        sequence(of_sequence),
        head(of_head),
        whole(flash.s.length % 4 == 0 && flash.drop.first_element % 4 == 0) {}

  __device__ float alone(std::int64_t i, std::int64_t j) const {
    device::Dropper::State state;
    return f.drop(state, matrix_row(f.s, sequence, head, i) + j, 1.0f);
  }
  __device__ float of(std::uint32_t word) const {
    return word < f.drop.bound ? 0.0f : f.drop.factor;
  }
  // The block of keys j to j + 3, j a multiple of 4.
  __device__ Philox block(std::int64_t i, std::int64_t j) const {
    const auto at = static_cast<std::uint64_t>(matrix_row(f.s, sequence, head, i) + j);
    return random_block(f.drop.key, (f.drop.first_element + at) / 4);
  }

  // Element e: query i + e / 2 · 8, key j + e % 2, j even. Lanes that differ in bit 0 have the two
  // halves of the same blocks: the even one draws that of query i, the odd one that of i + 8.
  __device__ __forceinline__ void of_queries(std::int64_t i, std::int64_t j,
                                             float (&kept)[4]) const {
    if (!whole) {
#pragma unroll
      for (int e = 0; e < 4; ++e) kept[e] = alone(i + e / 2 * 8, j + e % 2);
      return;
    }
    const bool odd = threadIdx.x % 2 == 1;
    const Philox own = block(i + (odd ? 8 : 0), j - (odd ? 2 : 0));
    const std::uint32_t low = __shfl_xor_sync(device::kAllLanes, odd ? own[0] : own[2], 1);
    const std::uint32_t high = __shfl_xor_sync(device::kAllLanes, odd ? own[1] : own[3], 1);
    kept[0] = of(odd ? low : own[0]);
    kept[1] = of(odd ? high : own[1]);
    kept[2] = of(odd ? own[2] : low);
    kept[3] = of(odd ? own[3] : high);
  }

  // Element e: query i + e % 2, key j + e / 2 · 8. Lanes that differ in bits 2 and 3 have keys side
  // by side: lane r of the four draws the block of element r, and words change places as in the
  // transpose of a 4 × 4 matrix.
  __device__ __forceinline__ void of_keys(std::int64_t i, std::int64_t j, float (&kept)[4]) const {
    if (!whole) {
#pragma unroll
      for (int e = 0; e < 4; ++e) kept[e] = alone(i + e % 2, j + e / 2 * 8);
      return;
    }
    const int r = static_cast<int>(threadIdx.x) / 4 % 4;
    const bool odd = r % 2 == 1, upper = r >= 2;
    const Philox own = block(i + r % 2, j - r + r / 2 * 8);
    // Words 2 · (r / 2) and one more, of the blocks of elements r % 2 and r % 2 + 2.
    const std::uint32_t a = __shfl_xor_sync(device::kAllLanes, upper ? own[0] : own[2], 8);
    const std::uint32_t b = __shfl_xor_sync(device::kAllLanes, upper ? own[1] : own[3], 8);
    const std::uint32_t first[2] = {upper ? a : own[0], upper ? b : own[1]};
    const std::uint32_t second[2] = {upper ? own[2] : a, upper ? own[3] : b};
    const std::uint32_t c = __shfl_xor_sync(device::kAllLanes, odd ? first[0] : first[1], 4);
    const std::uint32_t d = __shfl_xor_sync(device::kAllLanes, odd ? second[0] : second[1], 4);
    kept[0] = of(odd ? c : first[0]);
    kept[1] = of(odd ? first[1] : c);
    kept[2] = of(odd ? d : second[0]);
    kept[3] = of(odd ? second[1] : d);
  }
};

}  // namespace plimsoll::kernels::cuda
