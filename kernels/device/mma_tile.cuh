// Tiles of 16-bit rows in shared memory, and GEMMs of them by tensor cores: what a warp makes of
// its 16 rows and all rows of a tile. Fragments: kernels/device/platform.cuh.
#pragma once

#include "kernels/device/span.cuh"

namespace plimsoll::kernels::device {

// Rows are kD elements wide, filled with zeros behind the head's; a block has kThreads threads.
template <class T, int kD, int kThreads>
struct MmaTile {
  // Eight more, so that the eight rows of a matrix begin in different banks.
  static constexpr int kPitch = kD + 8;

  // Where the warp's 16 of the block's rows begin.
  __device__ static int own_rows() { return static_cast<int>(threadIdx.x) / 32 * 16 * kPitch; }

  // Begins to load rows `row` to `row` + kRows of `x`, a head that begins at element `at`; rows
  // from `end` on and columns from `d` on become 0.
  template <int kRows, class Heads>
  __device__ static void load(std::uint16_t* to, const Heads& x, std::int64_t at, std::int64_t row,
                              std::int64_t end, int d, bool vectors) {
    constexpr int kChunks = kD / kVector;
    const auto* data = static_cast<const std::uint16_t*>(x.span.data);
#pragma unroll 4
    for (int e = static_cast<int>(threadIdx.x); e < kRows * kChunks; e += kThreads) {
      const int r = e / kChunks, c = e % kChunks * kVector;
      const bool there = row + r < end && c < d;
      const std::uint16_t* from = data + (there ? at + (row + r) * x.stride + c : 0);
      std::uint16_t* chunk = to + r * kPitch + c;
      if (vectors) {
        copy_async(chunk, from, there);
      } else {
        for (int k = 0; k < kVector; ++k)
          chunk[k] = there && c + k < d ? from[k] : std::uint16_t{0};
      }
    }
  }

  // c[16 × 8 kTiles] += a · bᵀ: 16 rows a, and 8 kTiles rows b.
  template <int kTiles>
  __device__ static void multiply_rows(const std::uint16_t* a, const std::uint16_t* b,
                                       float (&c)[kTiles][4]) {
    static_assert(kTiles % 2 == 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::uint16_t* a_row = a + lane % 16 * kPitch + lane / 16 * 8;
    const std::uint16_t* b_row = b + (lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < kD; k += 16) {
      std::uint32_t left[4];
      load_matrices<false>(left, a_row + k);
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        std::uint32_t right[4];
        load_matrices<false>(right, b_row + n * 8 * kPitch + k);
        mma<T>(c[n], left, right[0], right[1]);
        mma<T>(c[n + 1], left, right[2], right[3]);
      }
    }
  }

  // c[16 × kD] += p · b: p a result of 16 × 8 kTiles, rounded to T, and 8 kTiles rows b.
  template <int kTiles>
  __device__ static void add_gemm(const float (&p)[kTiles][4], const std::uint16_t* b,
                                  float (&c)[kD / 8][4]) {
    static_assert(kTiles % 2 == 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::uint16_t* b_row = b + lane % 16 * kPitch + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < kTiles; k += 2) {
      const std::uint32_t left[4] = {packed<T>(p[k][0], p[k][1]), packed<T>(p[k][2], p[k][3]),
                                     packed<T>(p[k + 1][0], p[k + 1][1]),
                                     packed<T>(p[k + 1][2], p[k + 1][3])};
#pragma unroll
      for (int n = 0; n < kD / 8; n += 2) {
        std::uint32_t right[4];
        load_matrices<true>(right, b_row + k * 8 * kPitch + n * 8);
        mma<T>(c[n], left, right[0], right[1]);
        mma<T>(c[n + 1], left, right[2], right[3]);
      }
    }
  }

  // The lane's columns of its first (half 0) or second row, times `factor`, rounded; the row begins
  // at element `at`.
  template <class Heads>
  __device__ static void store_row(const Heads& x, std::int64_t at, int column, int d, float factor,
                                   int half, bool vectors, const float (&c)[kD / 8][4]) {
    auto* row = static_cast<std::uint16_t*>(x.span.data) + at;
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
      const int to = n * 8 + column;
      const float low = half == 0 ? c[n][0] : c[n][2], high = half == 0 ? c[n][1] : c[n][3];
      const std::uint32_t word = packed<T>(low * factor, high * factor);
      if (vectors) {
        if (to < d) *reinterpret_cast<std::uint32_t*>(row + to) = word;
      } else {
        if (to < d) row[to] = static_cast<std::uint16_t>(word);
        if (to + 1 < d) row[to + 1] = static_cast<std::uint16_t>(word >> 16);
      }
    }
  }
};

}  // namespace plimsoll::kernels::device
