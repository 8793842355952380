// Streaming attention without tensor cores: fp32, head sizes that are no multiple of 8, mixed
// storage.
//
// Thread mapping: a block of eight warps has eight neighbouring rows of one head, a warp for each:
// queries (forward and d_q) or keys (d_k and d_v). It goes over the other side 32 rows at a time,
// through shared memory; in dot products a lane has one of the 32, in sums it has every 32nd
// column. Memory: the other side is read once (backward: three times) for every eight rows.
// Numerics: fp32; keys (queries) are added in their order, 32 at a time; forward rescales what it
// has summed when a larger score appears.
#include "kernels/cuda/flash.h"
#include "kernels/device/reduce.cuh"
#include "kernels/device/soft_cap.cuh"

namespace plimsoll::kernels::cuda {

namespace {

using device::kAllLanes;
using device::kWarp;

constexpr int kRows = 8;  // of a block, a warp each
// Of a multiprocessor, at least: 128 registers for each thread, which all three kernels fit into.
constexpr int kBlocksAtOnce = 2;
constexpr int kMostColumns = 512 / kWarp;  // of a lane

__device__ float warp_sum(float v) {
  for (int step = kWarp / 2; step > 0; step /= 2) v += __shfl_xor_sync(kAllLanes, v, step);
  return v;
}
__device__ float warp_most(float v) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, v, step);
    v = v < other ? other : v;
  }
  return v;
}

// The block's shared memory: kRows rows of one or two operands, then a tile of the other side,
// whose rows begin in different banks.
struct Shared {
  int d, pitch;
  float* rows[2];
  float* tile;
};
__device__ Shared shared_for(std::int64_t head_dim, int operands) {
  Shared s;
  s.d = static_cast<int>(head_dim), s.pitch = s.d | 1;
  s.rows[0] = device::dynamic_shared<float>();
  s.rows[1] = s.rows[0] + kRows * s.d;
  s.tile = s.rows[0] + operands * kRows * s.d;
  return s;
}
std::size_t shared_bytes(const AttentionShape& s, int operands) {
  return static_cast<std::size_t>(operands * kRows * s.head_dim + kWarp * (s.head_dim | 1)) *
         sizeof(float);
}

// `count` rows from `row` on of a head that begins at `at`; rows behind `end` are 0.
__device__ void load_rows(const Heads& x, std::int64_t at, std::int64_t row, int count,
                          std::int64_t end, int d, int pitch, float* to) {
  for (int e = static_cast<int>(threadIdx.x); e < count * d; e += kRows * kWarp) {
    const int r = e / d, c = e % d;
    to[r * pitch + c] =
        row + r < end ? device::load_one(x.span, at + (row + r) * x.stride + c) : 0.0f;
  }
}
__device__ void load_tile(const Shared& s, const Heads& x, std::int64_t at, std::int64_t row,
                          std::int64_t end) {
  __syncthreads();  // the last tile is still being read
  load_rows(x, at, row, kWarp, end, s.d, s.pitch, s.tile);
  __syncthreads();
}

// The warp's row times the lane's row of the tile.
__device__ float dot(const Shared& s, const float* rows) {
  const float* a = rows + threadIdx.x / kWarp * s.d;
  const float* b = s.tile + threadIdx.x % kWarp * s.pitch;
  float sum = 0;
  for (int c = 0; c < s.d; ++c) sum = fmaf(a[c], b[c], sum);
  return sum;
}

// sum[c] += weight of lane r · row r of the tile, over all r.
__device__ void add_rows(const Shared& s, float weight, float (&sum)[kMostColumns]) {
  for (int r = 0; r < kWarp; ++r) {
    const float w = __shfl_sync(kAllLanes, weight, r);
#pragma unroll
    for (int m = 0; m < kMostColumns; ++m) {
      const int c = static_cast<int>(threadIdx.x) % kWarp + m * kWarp;
      if (c < s.d) sum[m] = fmaf(w, s.tile[r * s.pitch + c], sum[m]);
    }
  }
}
__device__ void store_row(const Heads& x, std::int64_t at, std::int64_t row, int d,
                          const float (&sum)[kMostColumns]) {
#pragma unroll
  for (int m = 0; m < kMostColumns; ++m) {
    const int c = static_cast<int>(threadIdx.x) % kWarp + m * kWarp;
    if (c < d) device::store_one(x.span, at + row * x.stride + c, sum[m]);
  }
}

__device__ float score_of(const AttentionShape& s, float product) {
  const float score = s.scale * product;
  return s.cap > 0 ? device::soft_capped(score, s.cap) : score;
}

__device__ float dropped(const Flash& f, std::int64_t sequence, std::int64_t head, std::int64_t i,
                         std::int64_t j) {
  device::Dropper::State state;
  return f.drop(state, matrix_row(f.s, sequence, head, i) + j, 1.0f);
}

__global__ void __launch_bounds__(kRows* kWarp, kBlocksAtOnce) plain_forward(Flash f) {
  const AttentionShape& s = f.s;
  const Shared shared = shared_for(s.head_dim, 1);
  const std::int64_t sequence = blockIdx.y / s.heads, head = blockIdx.y % s.heads;
  const std::int64_t key_head = head / f.group(), i0 = std::int64_t{blockIdx.x} * kRows;
  const std::int64_t i = i0 + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const std::int64_t end = i0 + kRows < s.length ? i0 + kRows : s.length;
  const std::int64_t k = f.k.at(s, sequence, key_head), v = f.v.at(s, sequence, key_head);
  load_rows(f.q, f.q.at(s, sequence, head), i0, kRows, s.length, shared.d, shared.d,
            shared.rows[0]);
  float sum[kMostColumns] = {}, most = device::kMinusInfinity, total = 0;
  for (std::int64_t j0 = first_key(s, i0); j0 < end; j0 += kWarp) {
    const std::int64_t j = j0 + lane;
    load_tile(shared, f.k, k, j0, s.length);
    const bool seen = i < s.length && sees(s, i, j);
    const float score = seen ? score_of(s, dot(shared, shared.rows[0])) : device::kMinusInfinity;
    const float larger = fmaxf(most, warp_most(score));
    const float shrink = most == device::kMinusInfinity ? 0.0f : expf(most - larger);
    const float p = seen ? expf(score - larger) : 0.0f;
    total = total * shrink + warp_sum(p);
    most = larger;
#pragma unroll
    for (int m = 0; m < kMostColumns; ++m) sum[m] *= shrink;
    load_tile(shared, f.v, v, j0, s.length);
    add_rows(shared, seen ? p * dropped(f, sequence, head, i, j) : 0.0f, sum);
  }
  if (i >= s.length) return;
#pragma unroll
  for (int m = 0; m < kMostColumns; ++m) sum[m] /= total;
  store_row(f.out, f.out.at(s, sequence, head), i, shared.d, sum);
  if (f.logsumexp && lane == 0) f.logsumexp[row_at(s, sequence, head, i)] = most + logf(total);
}

// What the gradient of a score is made of.
struct Pair {
  float p = 0, kept = 0, slope = 0;  // the last: of the score by the product
};
__device__ Pair probability(const Flash& f, std::int64_t sequence, std::int64_t head,
                            std::int64_t i, std::int64_t j, float product) {
  const float logsumexp = f.logsumexp[row_at(f.s, sequence, head, i)];
  const float score = score_of(f.s, product), p = expf(score - logsumexp);
  const float slope = f.s.cap > 0 ? device::soft_cap_slope(score, f.s.cap) : 1.0f;
  return {p, dropped(f, sequence, head, i, j), slope * f.s.scale};
}
__device__ float slope(const Flash& f, std::int64_t group, std::int64_t head, std::int64_t i,
                       const Pair& pair, float d_p) {
  const std::int64_t row = ((group - f.first_group) * f.group() + head % f.group()) * f.s.length;
  return pair.p * (d_p * pair.kept - f.row_sums[row + i]) * pair.slope;
}

__global__ void __launch_bounds__(kRows* kWarp, kBlocksAtOnce) plain_d_q(Flash f) {
  const AttentionShape& s = f.s;
  const Shared shared = shared_for(s.head_dim, 2);
  const std::int64_t group = f.first_group + blockIdx.y / f.group();
  const std::int64_t sequence = group / s.kv_heads, key_head = group % s.kv_heads;
  const std::int64_t head = key_head * f.group() + blockIdx.y % f.group();
  const std::int64_t i0 = std::int64_t{blockIdx.x} * kRows;
  const std::int64_t i = i0 + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const std::int64_t end = i0 + kRows < s.length ? i0 + kRows : s.length;
  const std::int64_t k = f.k.at(s, sequence, key_head), v = f.v.at(s, sequence, key_head);
  load_rows(f.q, f.q.at(s, sequence, head), i0, kRows, s.length, shared.d, shared.d,
            shared.rows[0]);
  load_rows(f.d_out, f.d_out.at(s, sequence, head), i0, kRows, s.length, shared.d, shared.d,
            shared.rows[1]);
  float sum[kMostColumns] = {};
  for (std::int64_t j0 = first_key(s, i0); j0 < end; j0 += kWarp) {
    const std::int64_t j = j0 + lane;
    const bool seen = i < s.length && sees(s, i, j);
    load_tile(shared, f.k, k, j0, s.length);
    const float product = dot(shared, shared.rows[0]);
    load_tile(shared, f.v, v, j0, s.length);
    const float d_p = dot(shared, shared.rows[1]);
    float d_score = 0;
    if (seen)
      d_score = slope(f, group, head, i, probability(f, sequence, head, i, j, product), d_p);
    load_tile(shared, f.k, k, j0, s.length);
    add_rows(shared, d_score, sum);
  }
  if (i < s.length) store_row(f.d_q, f.d_q.at(s, sequence, head), i, shared.d, sum);
}

__global__ void __launch_bounds__(kRows* kWarp, kBlocksAtOnce) plain_d_k_d_v(Flash f) {
  const AttentionShape& s = f.s;
  const Shared shared = shared_for(s.head_dim, 2);
  const std::int64_t group = f.first_group + blockIdx.y;
  const std::int64_t sequence = group / s.kv_heads, key_head = group % s.kv_heads;
  const std::int64_t j0 = std::int64_t{blockIdx.x} * kRows;
  const std::int64_t j = j0 + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  load_rows(f.k, f.k.at(s, sequence, key_head), j0, kRows, s.length, shared.d, shared.d,
            shared.rows[0]);
  load_rows(f.v, f.v.at(s, sequence, key_head), j0, kRows, s.length, shared.d, shared.d,
            shared.rows[1]);
  const std::int64_t last = j0 + kRows < s.length ? j0 + kRows - 1 : s.length - 1;
  const std::int64_t end = end_query(s, last);
  float d_k[kMostColumns] = {}, d_v[kMostColumns] = {};
  for (std::int64_t head = key_head * f.group(); head < (key_head + 1) * f.group(); ++head) {
    const std::int64_t q = f.q.at(s, sequence, head), d_out = f.d_out.at(s, sequence, head);
    for (std::int64_t i0 = j0; i0 < end; i0 += kWarp) {
      const std::int64_t i = i0 + lane;
      const bool seen = i < s.length && j < s.length && sees(s, i, j);
      load_tile(shared, f.q, q, i0, s.length);
      Pair pair;
      const float product = dot(shared, shared.rows[0]);
      if (seen) pair = probability(f, sequence, head, i, j, product);
      load_tile(shared, f.d_out, d_out, i0, s.length);
      const float d_p = dot(shared, shared.rows[1]);
      add_rows(shared, pair.p * pair.kept, d_v);
      const float d_score = seen ? slope(f, group, head, i, pair, d_p) : 0.0f;
      load_tile(shared, f.q, q, i0, s.length);
      add_rows(shared, d_score, d_k);
    }
  }
  if (j >= s.length) return;
  store_row(f.d_k, f.d_k.at(s, sequence, key_head), j, shared.d, d_k);
  store_row(f.d_v, f.d_v.at(s, sequence, key_head), j, shared.d, d_v);
}

Grid rows_grid(const Flash& f, std::int64_t heads, int operands) {
  Grid grid =
      block_each(ceil_divide(f.s.length, kRows), kRows * kWarp, shared_bytes(f.s, operands));
  check(heads <= 65535, ErrorKind::unsupported,
        "attention takes at most 65535 heads of a micro-batch");
  grid.blocks.y = static_cast<unsigned>(heads);
  return grid;
}

}  // namespace

void start_plain_forward(const Flash& f) {
  start("flash_forward", plain_forward, rows_grid(f, f.s.sequences * f.s.heads, 1), f);
}

void start_plain_backward(const Flash& f) {
  start("flash_backward", plain_d_q, rows_grid(f, f.groups * f.group(), 2), f);
  start("flash_backward", plain_d_k_d_v, rows_grid(f, f.groups, 2), f);
}

}  // namespace plimsoll::kernels::cuda
