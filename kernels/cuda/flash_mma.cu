// Streaming attention by tensor cores, for operands of one 16-bit type and heads of up to 128.
//
// Thread mapping: a block of four warps has 64 rows of one head, 16 rows a warp: queries (forward
// and d_q) or keys (d_k and d_v). The other side goes through shared memory, 64 rows at a time
// forward and 32 backward, each tile copied while the one before it is computed on. Scores stay in
// registers: a GEMM's result has the layout of the next one's left operand. Memory: the other
// side is read once for every 64 rows. Numerics: products of 16-bit numbers summed in fp32; the
// softmax is fp32, with exp2f; probabilities and gradients of scores are rounded to 16 bits before
// they are multiplied. The order of all sums is fixed: deterministic, no atomics. mma.sync and not
// Hopper's wgmma: the same kernel serves sm_80, sm_89 and sm_90.
#include "kernels/cuda/flash.h"
#include "kernels/cuda/flash_dropout.cuh"
#include "kernels/cuda/flash_scores.cuh"
#include "kernels/device/mma_tile.cuh"

namespace plimsoll::kernels::cuda {

namespace {

using device::MmaTile;

constexpr int kRows = 64, kStep = 32;  // of a block; of a backward tile of the other side
constexpr int kBlock = 128;  // threads

// Where the lane's part of a 16 × 8 result lies.
struct Lane {
  int row = static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  int column = static_cast<int>(threadIdx.x) % 4 * 2;
};

// Whether each of `rows` queries from i on sees each of `columns` keys from j on.
__device__ bool all_seen(const AttentionShape& s, std::int64_t i, std::int64_t rows, std::int64_t j,
                         std::int64_t columns) {
  return j + columns - 1 <= i && j >= first_key(s, i + rows - 1);
}

// Forward ----------------------------------------------------------------------------------------

template <int kTiles>
__device__ __forceinline__ void drop_some(const Kept& drop, std::int64_t i, std::int64_t j,
                                          float (&p)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    float kept[4];
    drop.of_queries(i, j + n * 8, kept);
#pragma unroll
    for (int e = 0; e < 4; ++e) p[n][e] *= kept[e];
  }
}

template <class T, int kD>
__global__ void __launch_bounds__(kBlock) mma_forward(Flash f, bool vectors) {
  using Tile = MmaTile<T, kD, kBlock>;
  const AttentionShape& s = f.s;
  std::uint16_t* q = device::dynamic_shared<std::uint16_t>();
  std::uint16_t *k = q + kRows * Tile::kPitch, *v = k + kRows * Tile::kPitch;
  const std::int64_t sequence = blockIdx.y / s.heads, head = blockIdx.y % s.heads;
  const std::int64_t key_head = head / f.group();
  // The last queries have the most keys: they begin first.
  const std::int64_t i0 = std::int64_t{gridDim.x - 1 - blockIdx.x} * kRows;
  const Lane lane;
  const std::int64_t i = i0 + lane.row;
  const std::int64_t end = i0 + kRows < s.length ? i0 + kRows : s.length;
  const std::int64_t at_k = f.k.at(s, sequence, key_head), at_v = f.v.at(s, sequence, key_head);
  const auto d = static_cast<int>(s.head_dim);
  std::int64_t j0 = first_key(s, i0) / kRows * kRows;
  Tile::template load<kRows>(q, f.q, f.q.at(s, sequence, head), i0, s.length, d, vectors);
  Tile::template load<kRows>(k, f.k, at_k, j0, s.length, d, vectors);
  Running running;
  float sum[kD / 8][4] = {};
  const float scale = s.cap > 0 ? 1.0f : s.scale;  // of what `scores` holds
  for (; j0 < end; j0 += kRows) {
    device::wait_for_copies();
    __syncthreads();  // the keys are there, and nobody reads the last values any more
    Tile::template load<kRows>(v, f.v, at_v, j0, s.length, d, vectors);
    float scores[kRows / 8][4] = {};
    Tile::multiply_rows(q + Tile::own_rows(), k, scores);
    device::wait_for_copies();
    __syncthreads();  // the values are there, and nobody reads the keys any more
    if (j0 + kRows < end)
      Tile::template load<kRows>(k, f.k, at_k, j0 + kRows, s.length, d, vectors);
    if (s.cap > 0) cap_scores(s, scores);
    if (!all_seen(s, i0, kRows, j0, kRows)) hide(s, i, j0 + lane.column, scores);
    exponentials(scale * kLog2e, scores, running, sum);
    if (f.drop.active) drop_some(Kept(f, sequence, head), i, j0 + lane.column, scores);
    Tile::add_gemm(scores, v, sum);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = quad_sum(running.total[half]);
    const std::int64_t row = i + 8 * half;
    if (row >= s.length) continue;
    Tile::store_row(f.out, f.out.at(s, sequence, head) + row * f.out.stride, lane.column, d,
                    1 / total, half, vectors, sum);
    if (f.logsumexp && lane.column == 0)
      f.logsumexp[row_at(s, sequence, head, row)] = running.most[half] * scale + logf(total);
  }
}

// Backward ---------------------------------------------------------------------------------------

// p and d_score of a tile of products, which they replace: scores = q · k, d_p = d_out · v.
// Element e of tile n belongs to query i(n, e) and key j(n, e); `drop` fills in the factors of a
// tile.
template <int kTiles, class Query, class Key, class Drop>
__device__ __forceinline__ void slopes(const Flash& f, Query query, Key key, Drop drop,
                                       const float (&logsumexp)[kTiles][4],
                                       const float (&row_sum)[kTiles][4],
                                       float (&scores)[kTiles][4], float (&d_p)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    float kept[4] = {1, 1, 1, 1};
    if (f.drop.active) drop(n, kept);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const std::int64_t i = query(n, e), j = key(n, e);
      const bool seen = i < f.s.length && j < f.s.length && sees(f.s, i, j);
      float score = scores[n][e], slope = f.s.scale;
      if (f.s.cap > 0) {
        const float capped = device::soft_capped(score * f.s.scale, f.s.cap);
        slope *= device::soft_cap_slope(capped, f.s.cap);
        score = capped - logsumexp[n][e];
      } else {
        score = fmaf(score, f.s.scale, -logsumexp[n][e]);
      }
      const float p = seen ? exp2f(score * kLog2e) : 0.0f;
      d_p[n][e] = p * (d_p[n][e] * kept[e] - row_sum[n][e]) * slope;
      scores[n][e] = p * kept[e];
    }
  }
}

// The group at hand, from a block's place in the grid.
struct Place {
  std::int64_t group, sequence, key_head;
};
__device__ Place place_of(const Flash& f, std::int64_t which) {
  const std::int64_t group = f.first_group + which;
  return {group, group / f.s.kv_heads, group % f.s.kv_heads};
}
__device__ std::int64_t row_sums_at(const Flash& f, std::int64_t group, std::int64_t head) {
  return ((group - f.first_group) * f.group() + head % f.group()) * f.s.length;
}

template <class T, int kD>
__global__ void __launch_bounds__(kBlock) mma_d_q(Flash f, bool vectors) {
  using Tile = MmaTile<T, kD, kBlock>;
  const AttentionShape& s = f.s;
  std::uint16_t* q = device::dynamic_shared<std::uint16_t>();
  std::uint16_t* d_out = q + kRows * Tile::kPitch;
  std::uint16_t* tiles = d_out + kRows * Tile::kPitch;  // keys and values, twice
  const Place place = place_of(f, blockIdx.y / f.group());
  const std::int64_t head = place.key_head * f.group() + blockIdx.y % f.group();
  const std::int64_t i0 = std::int64_t{gridDim.x - 1 - blockIdx.x} * kRows;
  const Lane lane;
  const std::int64_t i = i0 + lane.row;
  const std::int64_t end = i0 + kRows < s.length ? i0 + kRows : s.length;
  const auto d = static_cast<int>(s.head_dim);
  const auto load = [&](std::int64_t j, int which) {
    std::uint16_t* to = tiles + which * 2 * kStep * Tile::kPitch;
    Tile::template load<kStep>(to, f.k, f.k.at(s, place.sequence, place.key_head), j, s.length, d,
                               vectors);
    Tile::template load<kStep>(to + kStep * Tile::kPitch, f.v,
                               f.v.at(s, place.sequence, place.key_head), j, s.length, d, vectors);
  };
  Tile::template load<kRows>(q, f.q, f.q.at(s, place.sequence, head), i0, s.length, d, vectors);
  Tile::template load<kRows>(d_out, f.d_out, f.d_out.at(s, place.sequence, head), i0, s.length, d,
                             vectors);
  float logsumexp[kStep / 8][4], row_sum[kStep / 8][4];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const std::int64_t row = i + e / 2 * 8;
    const bool there = row < s.length;
    const float l = there ? f.logsumexp[row_at(s, place.sequence, head, row)] : 0.0f;
    const float sums = there ? f.row_sums[row_sums_at(f, place.group, head) + row] : 0.0f;
#pragma unroll
    for (int n = 0; n < kStep / 8; ++n) logsumexp[n][e] = l, row_sum[n][e] = sums;
  }
  float sum[kD / 8][4] = {};
  const std::int64_t first = first_key(s, i0) / kStep * kStep;
  load(first, 0);
  for (std::int64_t j0 = first; j0 < end; j0 += kStep) {
    const int which = static_cast<int>((j0 - first) / kStep % 2);
    device::wait_for_copies();
    __syncthreads();  // this tile is there, and nobody reads the other one any more
    if (j0 + kStep < end) load(j0 + kStep, 1 - which);
    const std::uint16_t* k = tiles + which * 2 * kStep * Tile::kPitch;
    float scores[kStep / 8][4] = {}, d_p[kStep / 8][4] = {};
    Tile::multiply_rows(q + Tile::own_rows(), k, scores);
    Tile::multiply_rows(d_out + Tile::own_rows(), k + kStep * Tile::kPitch, d_p);
    slopes(
        f, [&](int, int e) { return i + e / 2 * 8; },
        [&](int n, int e) { return j0 + n * 8 + lane.column + e % 2; },
        [&](int n, float(&kept)[4]) {
          Kept(f, place.sequence, head).of_queries(i, j0 + n * 8 + lane.column, kept);
        },
        logsumexp, row_sum, scores, d_p);
    Tile::add_gemm(d_p, k, sum);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (i + 8 * half < s.length)
      Tile::store_row(f.d_q, f.d_q.at(s, place.sequence, head) + (i + 8 * half) * f.d_q.stride,
                      lane.column, d, 1, half, vectors, sum);
}

// The tiles of queries that a block of keys goes through: head after head of its group.
struct Walk {
  std::int64_t first, tiles;  // first query; tiles of a head
  __device__ std::int64_t query(std::int64_t step) const { return first + step % tiles * kStep; }
};

template <class T, int kD>
__global__ void __launch_bounds__(kBlock) mma_d_k_d_v(Flash f, bool vectors) {
  using Tile = MmaTile<T, kD, kBlock>;
  const AttentionShape& s = f.s;
  std::uint16_t* k = device::dynamic_shared<std::uint16_t>();
  std::uint16_t *v = k + kRows * Tile::kPitch, *tiles = v + kRows * Tile::kPitch;
  float* of_rows = reinterpret_cast<float*>(tiles + 4 * kStep * Tile::kPitch);
  const Place place = place_of(f, blockIdx.y);
  const std::int64_t j0 = std::int64_t{blockIdx.x} * kRows;
  const Lane lane;
  const auto d = static_cast<int>(s.head_dim);
  const std::int64_t last = j0 + kRows < s.length ? j0 + kRows - 1 : s.length - 1;
  const Walk walk{j0, ceil_divide(end_query(s, last) - j0, kStep)};
  const auto load = [&](std::int64_t step, int which) {
    const std::int64_t head = place.key_head * f.group() + step / walk.tiles;
    const std::int64_t i = walk.query(step);
    std::uint16_t* to = tiles + which * 2 * kStep * Tile::kPitch;
    Tile::template load<kStep>(to, f.q, f.q.at(s, place.sequence, head), i, s.length, d, vectors);
    Tile::template load<kStep>(to + kStep * Tile::kPitch, f.d_out,
                               f.d_out.at(s, place.sequence, head), i, s.length, d, vectors);
    const int row = static_cast<int>(threadIdx.x);
    if (row >= kStep) return;
    const bool there = i + row < s.length;
    float* to_rows = of_rows + which * 2 * kStep;
    to_rows[row] = there ? f.logsumexp[row_at(s, place.sequence, head, i + row)] : 0.0f;
    to_rows[kStep + row] = there ? f.row_sums[row_sums_at(f, place.group, head) + i + row] : 0.0f;
  };
  const std::int64_t at_k = f.k.at(s, place.sequence, place.key_head);
  const std::int64_t at_v = f.v.at(s, place.sequence, place.key_head);
  Tile::template load<kRows>(k, f.k, at_k, j0, s.length, d, vectors);
  Tile::template load<kRows>(v, f.v, at_v, j0, s.length, d, vectors);
  load(0, 0);
  float d_k[kD / 8][4] = {}, d_v[kD / 8][4] = {};
  const std::int64_t steps = walk.tiles * f.group();
  for (std::int64_t step = 0; step < steps; ++step) {
    const int which = static_cast<int>(step % 2);
    device::wait_for_copies();
    __syncthreads();  // this tile is there, and nobody reads the other one any more
    if (step + 1 < steps) load(step + 1, 1 - which);
    const std::uint16_t* q = tiles + which * 2 * kStep * Tile::kPitch;
    const std::uint16_t* d_out = q + kStep * Tile::kPitch;
    const float* rows = of_rows + which * 2 * kStep;
    float scores[kStep / 8][4] = {}, d_p[kStep / 8][4] = {};
    Tile::multiply_rows(k + Tile::own_rows(), q, scores);
    Tile::multiply_rows(v + Tile::own_rows(), d_out, d_p);
    float logsumexp[kStep / 8][4], row_sum[kStep / 8][4];
#pragma unroll
    for (int n = 0; n < kStep / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        logsumexp[n][e] = rows[n * 8 + lane.column + e % 2];
        row_sum[n][e] = rows[kStep + n * 8 + lane.column + e % 2];
      }
    const std::int64_t head = place.key_head * f.group() + step / walk.tiles;
    const std::int64_t i0 = walk.query(step);
    slopes(
        f, [&](int n, int e) { return i0 + n * 8 + lane.column + e % 2; },
        [&](int, int e) { return j0 + lane.row + e / 2 * 8; },
        [&](int n, float(&kept)[4]) {
          Kept(f, place.sequence, head).of_keys(i0 + n * 8 + lane.column, j0 + lane.row, kept);
        },
        logsumexp, row_sum, scores, d_p);
    Tile::add_gemm(scores, d_out, d_v);
    Tile::add_gemm(d_p, q, d_k);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t j = j0 + lane.row + 8 * half;
    if (j >= s.length) continue;
    Tile::store_row(f.d_k, f.d_k.at(s, place.sequence, place.key_head) + j * f.d_k.stride,
                    lane.column, d, 1, half, vectors, d_k);
    Tile::store_row(f.d_v, f.d_v.at(s, place.sequence, place.key_head) + j * f.d_v.stride,
                    lane.column, d, 1, half, vectors, d_v);
  }
}

// Launches ---------------------------------------------------------------------------------------

// `tiles` tiles of 64 and of 32 rows, and some floats.
template <int kD>
Grid mma_grid(const Flash& f, std::int64_t heads, int rows, std::size_t floats) {
  using Tile = MmaTile<Bf16, kD, kBlock>;
  Grid grid = block_each(ceil_divide(f.s.length, kRows), kBlock,
                         static_cast<std::size_t>(rows * Tile::kPitch) * sizeof(std::uint16_t) +
                             floats * sizeof(float));
  check(heads <= 65535, ErrorKind::unsupported,
        "attention takes at most 65535 heads of a micro-batch");
  grid.blocks.y = static_cast<unsigned>(heads);
  return grid;
}

template <class T, int kD>
void start_forward(const Flash& f) {
  start("flash_forward", mma_forward<T, kD>,
        mma_grid<kD>(f, f.s.sequences * f.s.heads, 3 * kRows, 0), f,
        takes_vectors(f, {f.q, f.k, f.v, f.out}));
}
template <class T, int kD>
void start_backward(const Flash& f) {
  const bool vectors = takes_vectors(f, {f.q, f.k, f.v, f.d_out, f.d_q, f.d_k, f.d_v});
  constexpr int rows = 2 * kRows + 4 * kStep;
  start("flash_backward", mma_d_q<T, kD>, mma_grid<kD>(f, f.groups * f.group(), rows, 0), f,
        vectors);
  start("flash_backward", mma_d_k_d_v<T, kD>, mma_grid<kD>(f, f.groups, rows, 4 * kStep), f,
        vectors);
}

}  // namespace

bool takes_mma(const Flash& f, std::initializer_list<ConstColumns> operands) {
  const DType dtype = operands.begin()->tensor.dtype;
  bool takes = bits(dtype) == 16 && f.s.head_dim <= 128 && f.s.scale > 0;
  for (const ConstColumns& x : operands) takes = takes && x.tensor.dtype == dtype;
  return takes;
}

void start_mma_forward(const Flash& f) {
  const bool narrow = f.s.head_dim <= 64;
  if (f.q.span.storage == device::Storage::bf16)
    narrow ? start_forward<Bf16, 64>(f) : start_forward<Bf16, 128>(f);
  else
    narrow ? start_forward<Fp16, 64>(f) : start_forward<Fp16, 128>(f);
}

void start_mma_backward(const Flash& f) {
  const bool narrow = f.s.head_dim <= 64;
  if (f.q.span.storage == device::Storage::bf16)
    narrow ? start_backward<Bf16, 64>(f) : start_backward<Bf16, 128>(f);
  else
    narrow ? start_backward<Fp16, 64>(f) : start_backward<Fp16, 128>(f);
}

}  // namespace plimsoll::kernels::cuda
