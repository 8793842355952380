// The GEMMs and sums of a mixture's rows (kernels/expert_kernels.h).
//
// Thread mapping: GEMMs, 256 threads for each 64 × 64 tile of an expert's result
// (kernels/device/tile_gemm.cuh), of which a block finds the expert from where the experts' rows
// begin; sums and gates eight columns a thread, the gate's backward a block for each row.
// Memory: a GEMM reads its operands once for each 64 rows (columns) of the result; sums read k
// rows and write one; the gate reads 2 and writes 1, backward 3 and 3. Numerics: fp32, rounded
// once, sums in the order of rows and pairs; no tensor cores.
#include "kernels/cuda/pairs.h"
#include "kernels/device/activation.cuh"
#include "kernels/device/elementwise.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/tile_gemm.cuh"

namespace plimsoll::kernels::cuda {

namespace {

using device::kTile;
using device::kVector;

struct Rows {
  Span span;
  std::int64_t width;
  bool by_token;

  __device__ __forceinline__ float at(const Pairs& r, std::int64_t row, std::int64_t column) const {
    const std::int64_t from = by_token ? r.pairs[row] / r.active : row;
    return device::load_one(span, from * width + column);
  }
};

Rows rows_of(const Pairs& r, const RoutedRows& x, const char* op) {
  expect(x.view.shape[0] == (x.by_token ? r.tokens : r.rows), op,
         "an operand has a row for each row, or for each token");
  return {span_of(x.view), width_of(x.view), x.by_token};
}

struct Product {
  Pairs r;
  Rows x;
  Span weight, y;
  std::int64_t n;  // columns of the result
  bool transposed;  // of the weight
};

// Tiles of 64 rows of each expert, one expert after another; blockIdx.y counts them.
__global__ void __launch_bounds__(device::kTileThreads) multiply_rows(Product p) {
  __shared__ device::TileShared shared;
  std::int64_t tile = blockIdx.y, expert = 0;
  for (; expert < p.r.experts; ++expert) {
    const std::int64_t rows = p.r.offsets[expert + 1] - p.r.offsets[expert];
    if (tile < ceil_divide(rows, std::int64_t{kTile})) break;
    tile -= ceil_divide(rows, std::int64_t{kTile});
  }
  if (expert == p.r.experts) return;
  const std::int64_t row = p.r.offsets[expert] + tile * kTile, end = p.r.offsets[expert + 1];
  const std::int64_t column = std::int64_t{blockIdx.x} * kTile, k = p.x.width;
  const std::int64_t weight = expert * k * p.n;
  const std::int64_t by_l = p.transposed ? 1 : p.n, by_j = p.transposed ? k : 1;
  float sum[device::kMine][device::kMine] = {};
  device::add_tile_gemm(
      [&](int i, std::int64_t l) { return row + i < end ? p.x.at(p.r, row + i, l) : 0.0f; },
      [&](std::int64_t l, int j) {
        return column + j < p.n
                   ? device::load_one(p.weight, weight + l * by_l + (column + j) * by_j)
                   : 0.0f;
      },
      0, k, true, p.transposed, shared, sum);
  device::for_tile(row, end, column, p.n, sum, [&](std::int64_t i, std::int64_t j, float value) {
    device::store_one(p.y, i * p.n + j, value);
  });
}

Grid grid_of(const char* op, std::int64_t x, std::int64_t y) {
  expect(y <= 65535, op, "there are at most 65535 tiles of rows, or experts");
  Grid grid = block_each(x, device::kTileThreads);
  grid.blocks.y = static_cast<unsigned>(y);
  return grid;
}

void multiply(const char* op, const Routes& routes, const RoutedRows& x,
              const ConstTensorView& weight, bool transposed, const TensorView& y) {
  const Pairs r = pairs_of(routes, op);
  const Rows rows = rows_of(r, x, op);
  const std::int64_t n = width_of(y);
  expect(y.shape[0] == r.rows && weight.shape[0] == r.experts &&
             weight.elements() == r.experts * rows.width * n,
         op, "the shapes of operands and result match");
  if (r.rows == 0) return;
  // An expert has at most one tile that is not full.
  const std::int64_t tiles = r.rows / kTile + std::min(r.experts, r.rows);
  start(op, multiply_rows, grid_of(op, ceil_divide(n, std::int64_t{kTile}), tiles),
        Product{r, rows, span_of(weight), span_of(y), n, transposed});
}

void experts_forward(const Routes& r, RoutedRows x, ConstTensorView weight, TensorView y,
                     TensorView) {
  multiply("experts_forward", r, x, weight, true, y);
}

void experts_backward_input(const Routes& r, RoutedRows d_y, ConstTensorView weight, TensorView d_x,
                            TensorView) {
  multiply("experts_backward_input", r, d_y, weight, false, d_x);
}

struct WeightGradient {
  Pairs r;
  Rows d_y, x;
  Span d_weight;
};

__global__ void __launch_bounds__(device::kTileThreads) add_weight_gradient(WeightGradient g) {
  __shared__ device::TileShared shared;
  const std::int64_t m = g.d_y.width, n = g.x.width, tiles = ceil_divide(n, std::int64_t{kTile});
  const std::int64_t row = blockIdx.x / tiles * kTile, column = blockIdx.x % tiles * kTile;
  const std::int64_t expert = blockIdx.y;
  const std::int64_t begin = g.r.offsets[expert], end = g.r.offsets[expert + 1];
  if (begin == end) return;
  float sum[device::kMine][device::kMine] = {};
  device::add_tile_gemm(
      [&](int i, std::int64_t l) { return row + i < m ? g.d_y.at(g.r, l, row + i) : 0.0f; },
      [&](std::int64_t l, int j) { return column + j < n ? g.x.at(g.r, l, column + j) : 0.0f; },
      begin, end, false, false, shared, sum);
  device::for_tile(row, m, column, n, sum, [&](std::int64_t i, std::int64_t j, float value) {
    const std::int64_t at = (expert * m + i) * n + j;
    device::store_one(g.d_weight, at, device::load_one(g.d_weight, at) + value);
  });
}

void experts_backward_weight(const Routes& routes, RoutedRows d_y, RoutedRows x,
                             TensorView d_weight, TensorView) {
  constexpr const char* op = "experts_backward_weight";
  const Pairs r = pairs_of(routes, op);
  const WeightGradient g{r, rows_of(r, d_y, op), rows_of(r, x, op), span_of(d_weight)};
  expect(d_weight.elements() == r.experts * g.d_y.width * g.x.width, op,
         "the shapes of operands and result match");
  if (r.rows == 0) return;
  start(op, add_weight_gradient,
        grid_of(op,
                ceil_divide(g.d_y.width, std::int64_t{kTile}) *
                    ceil_divide(g.x.width, std::int64_t{kTile}),
                r.experts),
        g);
}

struct RowSum {
  Pairs r;
  Span rows, y;
  std::int64_t width;
  bool accumulate, vectors;
};

__global__ void __launch_bounds__(kThreads) sum_rows(RowSum s) {
  const std::int64_t groups = ceil_divide(s.width, std::int64_t{kVector});
  for (std::int64_t i = device::grid_thread(); i < s.r.tokens * groups;
       i += device::grid_threads()) {
    const std::int64_t token = i / groups, column = i % groups * kVector;
    const int some = s.width - column < kVector ? static_cast<int>(s.width - column) : kVector;
    float sum[kVector] = {}, v[kVector];
    for (std::int64_t j = 0; j < s.r.active; ++j) {
      const std::int64_t row = s.r.places[token * s.r.active + j];
      device::load_some(s.rows, row * s.width + column, some, s.vectors, v);
      for (int e = 0; e < kVector; ++e) sum[e] += v[e];
    }
    if (s.accumulate) {
      device::load_some(s.y, token * s.width + column, some, s.vectors, v);
      for (int e = 0; e < kVector; ++e) sum[e] += v[e];
    }
    device::store_some(s.y, token * s.width + column, some, s.vectors, sum);
  }
}

void experts_sum(const Routes& routes, ConstTensorView rows, bool accumulate, TensorView y) {
  constexpr const char* op = "experts_sum";
  const Pairs r = pairs_of(routes, op);
  const std::int64_t width = width_of(y);
  expect(y.shape[0] == r.tokens && rows.elements() == r.rows * width, op, "rows are as wide as y");
  if (r.rows == 0) return;
  start(op, sum_rows, strided_grid(r.tokens * ceil_divide(width, std::int64_t{kVector})),
        RowSum{r, span_of(rows), span_of(y), width, accumulate, aligned_rows({rows, y}, width)});
}

// Activation --------------------------------------------------------------------------------------

struct ScoredGate {
  Pairs r;
  Span gate_up, p;
  const float* scores;
  float* d_scores;  // or null
  std::int64_t width;
  bool vectors;
};

template <Activation kKind>
__global__ void __launch_bounds__(kThreads) scored_gate(ScoredGate s) {
  const std::int64_t groups = ceil_divide(s.width, std::int64_t{kVector});
  for (std::int64_t i = device::grid_thread(); i < s.r.rows * groups; i += device::grid_threads()) {
    const std::int64_t row = i / groups, column = i % groups * kVector;
    const int some = s.width - column < kVector ? static_cast<int>(s.width - column) : kVector;
    const float score = s.scores[s.r.pairs[row]];
    float g[kVector], u[kVector];
    device::load_some(s.gate_up, row * 2 * s.width + column, some, s.vectors, g);
    device::load_some(s.gate_up, (row * 2 + 1) * s.width + column, some, s.vectors, u);
    for (int e = 0; e < kVector; ++e) u[e] = score * (u[e] * device::Act<kKind>::at(g[e]).value);
    device::store_some(s.p, row * s.width + column, some, s.vectors, u);
  }
}

template <Activation kKind>
__global__ void __launch_bounds__(kThreads) scored_gate_gradient(ScoredGate s) {
  float* const shared = device::dynamic_shared<float>();
  const std::int64_t row = blockIdx.x, pair = s.r.pairs[row];
  const float score = s.scores[pair];
  float d_score = 0;
  for (std::int64_t column = std::int64_t{threadIdx.x} * kVector; column < s.width;
       column += std::int64_t{kThreads} * kVector) {
    const int some = s.width - column < kVector ? static_cast<int>(s.width - column) : kVector;
    const std::int64_t at = row * 2 * s.width + column;
    float g[kVector], u[kVector], d[kVector];
    device::load_some(s.gate_up, at, some, s.vectors, g);
    device::load_some(s.gate_up, at + s.width, some, s.vectors, u);
    device::load_some(s.p, row * s.width + column, some, s.vectors, d);
    for (int e = 0; e < kVector; ++e) {
      const device::ValueAndSlope f = device::Act<kKind>::at(g[e]);
      const float product = u[e] * f.value, scaled = score * d[e];
      d_score += d[e] * product;
      g[e] = scaled * u[e] * f.slope;
      u[e] = scaled * f.value;
      d[e] = score * product;
    }
    device::store_some(s.gate_up, at, some, s.vectors, g);
    device::store_some(s.gate_up, at + s.width, some, s.vectors, u);
    device::store_some(s.p, row * s.width + column, some, s.vectors, d);
  }
  d_score = device::row_sum(d_score, shared);
  if (s.d_scores && threadIdx.x == 0) s.d_scores[pair] = d_score;
}

ScoredGate gate_of(const char* op, const Routes& routes, const ConstTensorView& gate_up,
                   const ConstTensorView& scores, const ConstTensorView& p) {
  const Pairs r = pairs_of(routes, op);
  const std::int64_t width = width_of(p);
  expect(
      p.shape[0] == r.rows && gate_up.elements() == 2 * p.elements() && scores.elements() == r.rows,
      op, "gate_up has two of p's rows in one");
  return {.r = r,
          .gate_up = span_of(gate_up),
          .p = span_of(p),
          .scores = fp32_of(scores),
          .d_scores = nullptr,
          .width = width,
          .vectors = aligned_rows({gate_up, p}, width)};
}

void scored_gate_forward(Activation kind, const Routes& routes, ConstTensorView gate_up,
                         ConstTensorView scores, TensorView p) {
  constexpr const char* op = "scored_gate_forward";
  const ScoredGate s = gate_of(op, routes, gate_up, scores, p);
  device::with_activation(kind, [&](auto k) {
    start(op, scored_gate<k()>,
          strided_grid(s.r.rows * ceil_divide(s.width, std::int64_t{kVector})), s);
  });
}

void scored_gate_backward(Activation kind, const Routes& routes, TensorView gate_up,
                          ConstTensorView scores, TensorView d_p, TensorView d_scores) {
  constexpr const char* op = "scored_gate_backward";
  ScoredGate s = gate_of(op, routes, gate_up, scores, d_p);
  s.d_scores = d_scores ? fp32_of(d_scores) : nullptr;
  device::with_activation(kind, [&](auto k) {
    start(op, scored_gate_gradient<k()>,
          block_each(s.r.rows, kThreads, device::kMostWarps * sizeof(float)), s);
  });
}

}  // namespace

void add_experts(KernelTable& table) {
  table.experts_forward = experts_forward;
  table.experts_backward_input = experts_backward_input;
  table.experts_backward_weight = experts_backward_weight;
  table.experts_sum = experts_sum;
  table.scored_gate_forward = scored_gate_forward;
  table.scored_gate_backward = scored_gate_backward;
}

}  // namespace plimsoll::kernels::cuda
