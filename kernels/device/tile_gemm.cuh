// A 64 × 64 tile of a GEMM in fp32 arithmetic, for any storage and layout: what
// libraries do not do. 256 threads, of which thread (x, y) of 16 × 16 has rows 4y … 4y + 3 and
// columns 4x … 4x + 3; the depth goes through shared memory 16 at a time.
#pragma once

#include "kernels/device/span.cuh"

namespace plimsoll::kernels::device {

inline constexpr int kTile = 64, kDepth = 16, kTileThreads = 256, kMine = 4;

struct TileShared {
  float a[kDepth][kTile + 4], b[kDepth][kTile + 4];  // 4 more: rows begin in different banks
};

// sum[r][c] += sum over l in [begin, end) of a(i, l) · b(l, j), in the order of l, for the thread's
// rows i and columns j of the tile, which both count from 0. `a` and `b` read one element as fp32,
// 0 where there is none. `a_in_depth`, `b_in_depth`: neighbours in l are neighbours in memory.
template <class A, class B>
__device__ __forceinline__ void add_tile_gemm(const A& a, const B& b, std::int64_t begin,
                                              std::int64_t end, bool a_in_depth, bool b_in_depth,
                                              TileShared& shared, float (&sum)[kMine][kMine]) {
  const int x = threadIdx.x % 16 * kMine, y = threadIdx.x / 16 * kMine;
  for (std::int64_t l0 = begin; l0 < end; l0 += kDepth) {
    __syncthreads();  // the last tiles are still being read
#pragma unroll
    for (int at = static_cast<int>(threadIdx.x); at < kTile * kDepth; at += kTileThreads) {
      const int al = a_in_depth ? at % kDepth : at / kTile,
                ai = a_in_depth ? at / kDepth : at % kTile;
      const int bl = b_in_depth ? at % kDepth : at / kTile,
                bj = b_in_depth ? at / kDepth : at % kTile;
      shared.a[al][ai] = l0 + al < end ? a(ai, l0 + al) : 0.0f;
      shared.b[bl][bj] = l0 + bl < end ? b(l0 + bl, bj) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int l = 0; l < kDepth; ++l)
      for (int r = 0; r < kMine; ++r)
        for (int c = 0; c < kMine; ++c)
          sum[r][c] = fmaf(shared.a[l][y + r], shared.b[l][x + c], sum[r][c]);
  }
}

// Calls visit(i, j, sum) for each of the thread's elements that lies in the matrix: the tile begins
// at row `row` of `rows` and at column `column` of `columns`.
template <class Visit>
__device__ __forceinline__ void for_tile(std::int64_t row, std::int64_t rows, std::int64_t column,
                                         std::int64_t columns, const float (&sum)[kMine][kMine],
                                         Visit visit) {
  const int x = threadIdx.x % 16 * kMine, y = threadIdx.x / 16 * kMine;
#pragma unroll
  for (int r = 0; r < kMine; ++r)
#pragma unroll  // or `sum` is indexed at run time
    for (int c = 0; c < kMine; ++c)
      if (row + y + r < rows && column + x + c < columns)
        visit(row + y + r, column + x + c, sum[r][c]);
}

}  // namespace plimsoll::kernels::device
