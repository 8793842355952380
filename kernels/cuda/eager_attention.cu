// Attention with a stored matrix, one op at a time.
//
// Thread mapping: GEMMs, 256 threads for each 64 × 64 tile of a head's result
// (kernels/device/tile_gemm.cuh), the tiles that the mask hides left out; softmaxes, a block of
// 256 threads for each row.
// Memory: as many passes over the matrix as the op's signature says; a GEMM reads its operands
// once for each 64 rows (columns) of its result.
// Numerics: fp32, sums in the order of keys (queries, heads), no tensor cores. A softmax's sum is a
// tree over the threads.
#include "kernels/cuda/flash.h"
#include "kernels/device/reduce.cuh"
#include "kernels/device/soft_cap.cuh"
#include "kernels/device/tile_gemm.cuh"
#include "kernels/host/attention.h"

namespace plimsoll::kernels::cuda {

namespace {

using device::kTile;
using device::kVector;

// What becomes of a GEMM of two rows.
enum class Product : std::uint8_t { score, plain, slope };

struct OfHeads {
  AttentionShape s;
  float factor, hidden;
  Span p;
  Heads x, y;
  Product what = Product::plain;
};

// slope: what is there is multiplied with that of the score's cap.
__device__ float made_of(const OfHeads& t, float product, std::int64_t at) {
  const float score = t.factor * product;
  if (t.what == Product::plain || t.s.cap == 0) return score;
  const float capped = device::soft_capped(score, t.s.cap);
  if (t.what == Product::score) return capped;
  return device::load_one(t.p, at) * device::soft_cap_slope(capped, t.s.cap);
}

// p[i, j] = factor · x[i] · y[j] as `what` says, or `hidden`: x of a head, y of its key head.
__global__ void __launch_bounds__(device::kTileThreads) products_of_rows(OfHeads t) {
  __shared__ device::TileShared shared;
  const AttentionShape& s = t.s;
  const std::int64_t tiles = ceil_divide(s.length, kTile);
  const std::int64_t row = blockIdx.x / tiles * kTile, column = blockIdx.x % tiles * kTile;
  const std::int64_t sequence = blockIdx.y / s.heads, head = blockIdx.y % s.heads;
  const std::int64_t x = t.x.at(s, sequence, head);
  const std::int64_t y = t.y.at(s, sequence, head / (s.heads / s.kv_heads));
  const std::int64_t last_row = row + kTile < s.length ? row + kTile - 1 : s.length - 1;
  const bool any = column <= last_row && column + kTile > first_key(s, row);
  float sum[device::kMine][device::kMine] = {};
  if (any)
    device::add_tile_gemm(
        [&](int i, std::int64_t c) {
          return row + i < s.length ? device::load_one(t.x.span, x + (row + i) * t.x.stride + c)
                                    : 0.0f;
        },
        [&](std::int64_t c, int j) {
          return column + j < s.length
                     ? device::load_one(t.y.span, y + (column + j) * t.y.stride + c)
                     : 0.0f;
        },
        0, s.head_dim, true, true, shared, sum);
  device::for_tile(row, s.length, column, s.length, sum,
                   [&](std::int64_t i, std::int64_t j, float value) {
                     const std::int64_t at = matrix_row(s, sequence, head, i) + j;
                     device::store_one(t.p, at, sees(s, i, j) ? made_of(t, value, at) : t.hidden);
                   });
}

// y[i] = factor · sum over the keys j that i sees of p[i, j] · x[j].
__global__ void __launch_bounds__(device::kTileThreads) sum_over_keys(OfHeads t) {
  __shared__ device::TileShared shared;
  const AttentionShape& s = t.s;
  const std::int64_t tiles = ceil_divide(s.head_dim, kTile);
  const std::int64_t row = blockIdx.x / tiles * kTile, column = blockIdx.x % tiles * kTile;
  const std::int64_t sequence = blockIdx.y / s.heads, head = blockIdx.y % s.heads;
  const std::int64_t x = t.x.at(s, sequence, head / (s.heads / s.kv_heads));
  const std::int64_t y = t.y.at(s, sequence, head);
  const std::int64_t end = row + kTile < s.length ? row + kTile : s.length;
  float sum[device::kMine][device::kMine] = {};
  device::add_tile_gemm(
      [&](int i, std::int64_t j) {
        return row + i < s.length && sees(s, row + i, j)
                   ? device::load_one(t.p, matrix_row(s, sequence, head, row + i) + j)
                   : 0.0f;
      },
      [&](std::int64_t j, int c) {
        return column + c < s.head_dim ? device::load_one(t.x.span, x + j * t.x.stride + column + c)
                                       : 0.0f;
      },
      first_key(s, row), end, true, false, shared, sum);
  device::for_tile(row, s.length, column, s.head_dim, sum,
                   [&](std::int64_t i, std::int64_t c, float value) {
                     device::store_one(t.y.span, y + i * t.y.stride + c, t.factor * value);
                   });
}

// y[j] = factor · sum over the heads of the key head and the queries i that see j of p[i, j] ·
// x[i].
__global__ void __launch_bounds__(device::kTileThreads) sum_over_queries(OfHeads t) {
  __shared__ device::TileShared shared;
  const AttentionShape& s = t.s;
  const std::int64_t tiles = ceil_divide(s.head_dim, kTile), group = s.heads / s.kv_heads;
  const std::int64_t row = blockIdx.x / tiles * kTile, column = blockIdx.x % tiles * kTile;
  const std::int64_t sequence = blockIdx.y / s.kv_heads, key_head = blockIdx.y % s.kv_heads;
  const std::int64_t y = t.y.at(s, sequence, key_head);
  const std::int64_t last = row + kTile < s.length ? row + kTile - 1 : s.length - 1;
  float sum[device::kMine][device::kMine] = {};
  for (std::int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
    const std::int64_t x = t.x.at(s, sequence, head);
    device::add_tile_gemm(
        [&](int j, std::int64_t i) {
          return row + j < s.length && sees(s, i, row + j)
                     ? device::load_one(t.p, matrix_row(s, sequence, head, i) + row + j)
                     : 0.0f;
        },
        [&](std::int64_t i, int c) {
          return column + c < s.head_dim
                     ? device::load_one(t.x.span, x + i * t.x.stride + column + c)
                     : 0.0f;
        },
        row, end_query(s, last), false, false, shared, sum);
  }
  device::for_tile(row, s.length, column, s.head_dim, sum,
                   [&](std::int64_t j, std::int64_t c, float value) {
                     device::store_one(t.y.span, y + j * t.y.stride + c, t.factor * value);
                   });
}

// Softmaxes --------------------------------------------------------------------------------------

struct Softmax {
  Span p, d_p;
  std::int64_t width;
  device::Dropper drop;
  bool vectors;
};

template <class Visit>
__device__ __forceinline__ void in_row(std::int64_t width, Visit visit) {
  for (std::int64_t c = std::int64_t{threadIdx.x} * kVector; c < width;
       c += std::int64_t{blockDim.x} * kVector)
    visit(c, width - c < kVector ? static_cast<int>(width - c) : kVector);
}

__global__ void __launch_bounds__(kThreads) softmax_rows(Softmax t) {
  __shared__ float shared[device::kMostWarps];
  const std::int64_t at = blockIdx.x * t.width;
  float most = device::kMinusInfinity, sum = 0, v[kVector];
  in_row(t.width, [&](std::int64_t c, int some) {
    device::load_some(t.p, at + c, some, t.vectors, v);
    for (int e = 0; e < kVector; ++e)
      if (e < some && most < v[e]) most = v[e];
  });
  most = device::over_row(most, shared, device::Larger{});
  in_row(t.width, [&](std::int64_t c, int some) {
    device::load_some(t.p, at + c, some, t.vectors, v);
    for (int e = 0; e < kVector; ++e)
      if (e < some) sum += expf(v[e] - most);
  });
  sum = device::row_sum(sum, shared);
  in_row(t.width, [&](std::int64_t c, int some) {
    device::load_some(t.p, at + c, some, t.vectors, v);
    for (int e = 0; e < kVector; ++e) v[e] = expf(v[e] - most) / sum;
    device::store_some(t.p, at + c, some, t.vectors, v);
  });
}

__global__ void __launch_bounds__(kThreads) softmax_slopes(Softmax t) {
  __shared__ float shared[device::kMostWarps];
  const std::int64_t at = blockIdx.x * t.width;
  float p[kVector], d[kVector], sum = 0;
  const auto load = [&](std::int64_t c, int some) {
    device::load_some(t.p, at + c, some, t.vectors, p);
    device::load_some(t.d_p, at + c, some, t.vectors, d);
    device::Dropper::State state;
    for (int e = 0; e < kVector; ++e) d[e] = t.drop(state, at + c + e, d[e]);
  };
  in_row(t.width, [&](std::int64_t c, int some) {
    load(c, some);
    for (int e = 0; e < kVector; ++e) sum += p[e] * d[e];  // 0 behind the row
  });
  sum = device::row_sum(sum, shared);
  in_row(t.width, [&](std::int64_t c, int some) {
    load(c, some);
    for (int e = 0; e < kVector; ++e) d[e] = p[e] * (d[e] - sum);
    device::store_some(t.d_p, at + c, some, t.vectors, d);
  });
}

// Launches ---------------------------------------------------------------------------------------

Grid tile_grid(const AttentionShape& s, std::int64_t columns, std::int64_t heads) {
  Grid grid =
      block_each(ceil_divide(s.length, kTile) * ceil_divide(columns, kTile), device::kTileThreads);
  check(s.sequences * heads <= 65535, ErrorKind::unsupported,
        "attention with a stored matrix takes at most 65535 heads of a micro-batch");
  grid.blocks.y = static_cast<unsigned>(s.sequences * heads);
  return grid;
}

void expect_operands(const AttentionShape& s, const ConstTensorView& p, const ConstColumns& queries,
                     const ConstColumns& keys, const char* op) {
  host::expect_shape(s, op);
  host::expect_matrix(s, p, op);
  host::expect_heads(s, queries, s.heads, op);
  host::expect_heads(s, keys, s.kv_heads, op);
}

void start_products(const char* op, void (*kernel)(OfHeads), const Grid& grid,
                    const AttentionShape& s, float factor, float hidden, const ConstTensorView& p,
                    const ConstColumns& x, const ConstColumns& y, Product what = Product::plain) {
  start(op, kernel, grid, OfHeads{s, factor, hidden, span_of(p), heads_of(x), heads_of(y), what});
}

void attention_scores(const AttentionShape& s, ConstColumns q, ConstColumns k, TensorView p) {
  constexpr const char* op = "attention_scores";
  expect_operands(s, p, q, k, op);
  start_products(op, products_of_rows, tile_grid(s, s.length, s.heads), s, s.scale,
                 device::kMinusInfinity, p, q, k, Product::score);
}

void softmax_forward(TensorView p) {
  const std::int64_t width = p.shape[p.shape.rank - 1];
  const std::int64_t rows = width == 0 ? 0 : p.elements() / width;
  start("softmax_forward", softmax_rows, block_each(rows, kThreads),
        Softmax{span_of(p), {}, width, {}, aligned_rows({p}, width)});
}

void attention_values(const AttentionShape& s, ConstTensorView p, ConstColumns v, TensorView out) {
  constexpr const char* op = "attention_values";
  expect_operands(s, p, out, v, op);
  start_products(op, sum_over_keys, tile_grid(s, s.head_dim, s.heads), s, 1, 0, p, v,
                 ConstColumns(ConstTensorView(out)));
}

void attention_values_backward(const AttentionShape& s, ConstTensorView p, ConstTensorView d_out,
                               Columns d_v) {
  constexpr const char* op = "attention_values_backward";
  expect_operands(s, p, d_out, d_v, op);
  start_products(op, sum_over_queries, tile_grid(s, s.head_dim, s.kv_heads), s, 1, 0, p, d_out,
                 d_v);
}

void attention_probabilities_backward(const AttentionShape& s, ConstTensorView d_out,
                                      ConstColumns v, TensorView d_p) {
  constexpr const char* op = "attention_probabilities_backward";
  expect_operands(s, d_p, d_out, v, op);
  start_products(op, products_of_rows, tile_grid(s, s.length, s.heads), s, 1, 0, d_p, d_out, v);
}

void softmax_backward(ConstTensorView p, const Dropout& dropout, TensorView d_p) {
  expect(p.shape == d_p.shape, "softmax_backward", "d_p has p's shape");
  const std::int64_t width = p.shape[p.shape.rank - 1];
  const std::int64_t rows = width == 0 ? 0 : p.elements() / width;
  start(
      "softmax_backward", softmax_slopes, block_each(rows, kThreads),
      Softmax{span_of(p), span_of(d_p), width, dropper_of(dropout), aligned_rows({p, d_p}, width)});
}

void attention_scores_backward(const AttentionShape& s, TensorView d_p, ConstColumns q,
                               ConstColumns k, Columns d_q, Columns d_k) {
  constexpr const char* op = "attention_scores_backward";
  expect_operands(s, d_p, q, k, op);
  expect_operands(s, d_p, d_q, d_k, op);
  if (s.cap > 0)
    start_products(op, products_of_rows, tile_grid(s, s.length, s.heads), s, s.scale, 0, d_p, q, k,
                   Product::slope);
  start_products(op, sum_over_keys, tile_grid(s, s.head_dim, s.heads), s, s.scale, 0, d_p, k, d_q);
  start_products(op, sum_over_queries, tile_grid(s, s.head_dim, s.kv_heads), s, s.scale, 0, d_p, q,
                 d_k);
}

}  // namespace

void add_eager_attention(KernelTable& table) {
  table.attention_scores = attention_scores;
  table.softmax_forward = softmax_forward;
  table.attention_values = attention_values;
  table.attention_values_backward = attention_values_backward;
  table.attention_probabilities_backward = attention_probabilities_backward;
  table.softmax_backward = softmax_backward;
  table.attention_scores_backward = attention_scores_backward;
}

}  // namespace plimsoll::kernels::cuda
