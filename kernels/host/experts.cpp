// A mixture's routing, and the GEMMs and sums of its experts' rows.
#include <limits>

#include "kernels/host/activation.h"
#include "kernels/host/blocks.h"
#include "kernels/host/gemm.h"

namespace plimsoll::kernels::host {

namespace {

void expect_routes(const Routes& r, const char* op) {
  expect(r.experts() > 0 && r.active > 0 && r.rows() % r.active == 0 &&
             r.chosen.elements() == r.rows() && r.places.elements() == r.rows(),
         op, "routes are of whole tokens");
}

// Routing -----------------------------------------------------------------------------------------

struct Softmax {
  float most = -std::numeric_limits<float>::infinity(), sum = 0;
  float of(float logit) const { return std::exp(logit - most) / sum; }
};

// Of the row's logits, or of those that `only` names.
Softmax softmax_of(const ConstTensorView& logits, std::int64_t row, std::int64_t experts,
                   const std::int32_t* only, std::int64_t active) {
  Softmax s;
  const std::int64_t n = only ? active : experts;
  const auto at = [&](std::int64_t i) {
    return read_one(logits, row * experts + (only ? only[i] : i));
  };
  for (std::int64_t i = 0; i < n; ++i) s.most = std::max(s.most, at(i));
  for (std::int64_t i = 0; i < n; ++i) s.sum += std::exp(at(i) - s.most);
  return s;
}

// The largest logit behind the one that was chosen last: smaller, or equal and of a later expert. A
// NaN is none; where there is none left, the last expert.
std::int32_t next_expert(const ConstTensorView& logits, std::int64_t row, std::int64_t experts,
                         float last, std::int64_t last_expert) {
  float best = 0;
  std::int64_t found = -1;
  for (std::int64_t e = 0; e < experts; ++e) {
    const float logit = read_one(logits, row * experts + e);
    const bool left =
        last_expert < 0 ? logit == logit : logit < last || (logit == last && e > last_expert);
    if (left && (found < 0 || logit > best)) best = logit, found = e;
  }
  return static_cast<std::int32_t>(found < 0 ? experts - 1 : found);
}

// Pairs in their order, expert by expert.
void sort_pairs(const Routes& r) {
  std::int32_t* offsets = int32_of(r.offsets);
  const std::int32_t* chosen = int32_of(r.chosen);
  std::fill(offsets, offsets + r.experts() + 1, 0);
  for (std::int64_t p = 0; p < r.rows(); ++p) ++offsets[chosen[p] + 1];
  for (std::int64_t e = 0; e < r.experts(); ++e) offsets[e + 1] += offsets[e];
  std::int32_t row = 0;
  for (std::int32_t e = 0; e < r.experts(); ++e)
    for (std::int64_t p = 0; p < r.rows(); ++p) {
      if (chosen[p] != e) continue;
      int32_of(r.pairs)[row] = static_cast<std::int32_t>(p);
      int32_of(r.places)[p] = row++;
    }
}

void route(ConstTensorView logits, bool normalizes, const Routes& r, TensorView scores) {
  constexpr const char* op = "route";
  expect_routes(r, op);
  const std::int64_t experts = r.experts();
  expect(logits.elements() == r.tokens() * experts && scores.elements() == r.rows() &&
             r.active <= experts,
         op, "logits are [T, E], scores [T, k] with k <= E");
  for (std::int64_t t = 0; t < r.tokens(); ++t) {
    std::int32_t* chosen = int32_of(r.chosen) + t * r.active;
    for (std::int64_t j = 0; j < r.active; ++j) {
      const std::int64_t last = j == 0 ? -1 : chosen[j - 1];
      chosen[j] = next_expert(logits, t, experts,
                              last < 0 ? 0 : read_one(logits, t * experts + last), last);
    }
    const Softmax s = softmax_of(logits, t, experts, normalizes ? chosen : nullptr, r.active);
    for (std::int64_t j = 0; j < r.active; ++j)
      fp32_of(scores)[t * r.active + j] = s.of(read_one(logits, t * experts + chosen[j]));
  }
  sort_pairs(r);
}

void route_backward(ConstTensorView logits, bool normalizes, const Routes& r,
                    ConstTensorView scores, ConstTensorView d_scores, TensorView d_logits) {
  constexpr const char* op = "route_backward";
  expect_routes(r, op);
  const std::int64_t experts = r.experts();
  expect(d_logits.elements() == r.tokens() * experts && scores.elements() == r.rows() &&
             d_scores.elements() == r.rows() &&
             (normalizes || logits.elements() == d_logits.elements()),
         op, "logits are [T, E], scores [T, k]");
  for (std::int64_t t = 0; t < r.tokens(); ++t) {
    const std::int32_t* chosen = int32_of(r.chosen) + t * r.active;
    const float* score = fp32_of(scores) + t * r.active;
    const float* d_score = fp32_of(d_scores) + t * r.active;
    float mean = 0;
    for (std::int64_t j = 0; j < r.active; ++j) mean += score[j] * d_score[j];
    Softmax s;
    if (!normalizes) s = softmax_of(logits, t, experts, nullptr, 0);
    for (std::int64_t e = 0; e < experts; ++e) {
      float d = normalizes ? 0 : -s.of(read_one(logits, t * experts + e)) * mean;
      for (std::int64_t j = 0; j < r.active; ++j)
        if (chosen[j] == e) d += score[j] * (normalizes ? d_score[j] - mean : d_score[j]);
      write_one(d, t * experts + e, d_logits);
    }
  }
}

// GEMMs -------------------------------------------------------------------------------------------

// Rows of an operand as a GEMM of one expert reads them.
struct Rows {
  const Routes& routes;
  RoutedRows x;
  std::int64_t width;

  std::int64_t at(std::int64_t row) const {
    const std::int64_t from = x.by_token ? int32_of(routes.pairs)[row] / routes.active : row;
    return from * width;
  }
};

Rows rows_of(const Routes& r, const RoutedRows& x, const char* op) {
  const std::int64_t rows = x.by_token ? r.tokens() : r.rows();
  expect(x.view.shape[0] == rows, op, "an operand has a row for each row, or for each token");
  return {r, x, width_of(x.view)};
}

// Columns of some rows, widened, one row after another.
void gather(const Rows& rows, std::int64_t row, std::int64_t n, std::int64_t column,
            std::int64_t columns, float* to) {
  for (std::int64_t i = 0; i < n; ++i)
    in_blocks(columns, [&](std::int64_t first, std::int64_t some) {
      read(rows.x.view, rows.at(row + i) + column + first, some, to + i * columns + first);
    });
}

// Of a matrix of `columns` columns that begins at element `first`.
void gather(const ConstTensorView& matrix, std::int64_t first, std::int64_t stride, std::int64_t n,
            std::int64_t columns, float* to) {
  for (std::int64_t i = 0; i < n; ++i)
    in_blocks(columns, [&](std::int64_t c, std::int64_t some) {
      read(matrix, first + i * stride + c, some, to + i * columns + c);
    });
}

// Square tiles, three of which fill the panels; without panels (fp32) they are a row wide, on the
// stack.
constexpr std::int64_t kLeastSide = 16;
class Tiles {
 public:
  explicit Tiles(const TensorView& panels) {
    const std::int64_t held = panels ? panels.elements() : 0;
    const auto most =
        static_cast<std::int64_t>(std::floor(std::sqrt(static_cast<double>(held) / 3)));
    side_ = std::max(kLeastSide, most);
    float* const at = most >= kLeastSide ? fp32_of(panels) : stack_;
    for (int i = 0; i < 3; ++i) tile_[i] = at + i * side_ * side_;
  }
  std::int64_t side() const { return side_; }
  float* sum() const { return tile_[0]; }
  float* left() const { return tile_[1]; }
  float* right() const { return tile_[2]; }

 private:
  std::int64_t side_ = 0;
  float* tile_[3] = {};
  float stack_[3 * kLeastSide * kLeastSide];
};

// Visits the tiles of a GEMM of `m` rows, `n` columns: what `add` sums in a tile goes to `out`.
template <class Add>
void in_tiles(const Tiles& tiles, std::int64_t m, std::int64_t n, std::int64_t k,
              std::int64_t first, bool accumulate, const TensorView& out, Add add) {
  const std::int64_t side = tiles.side();
  for (std::int64_t i = 0; i < m; i += side)
    for (std::int64_t j = 0; j < n; j += side) {
      const std::int64_t rows = std::min(side, m - i), columns = std::min(side, n - j);
      if (accumulate)
        gather(out, first + i * n + j, n, rows, columns, tiles.sum());
      else
        std::fill(tiles.sum(), tiles.sum() + rows * columns, 0.0f);
      for (std::int64_t l = 0; l < k; l += side) add(i, rows, j, columns, l, std::min(side, k - l));
      for (std::int64_t r = 0; r < rows; ++r)
        write(tiles.sum() + r * columns, first + (i + r) * n + j, columns, out);
    }
}

template <class Visit>
void for_experts(const Routes& r, Visit visit) {
  const std::int32_t* offsets = int32_of(r.offsets);
  for (std::int64_t e = 0; e < r.experts(); ++e)
    if (offsets[e + 1] > offsets[e]) visit(e, offsets[e], offsets[e + 1] - offsets[e]);
}

// y = x · weight[e], transposed: its transpose. `k`: x's columns.
void multiply(const char* op, const Routes& r, const RoutedRows& x, const ConstTensorView& weight,
              bool transposed, const TensorView& y, const TensorView& panels) {
  expect_routes(r, op);
  const Rows rows = rows_of(r, x, op);
  const std::int64_t k = rows.width, n = width_of(y), size = weight.elements() / r.experts();
  expect(y.shape[0] == r.rows() && weight.shape[0] == r.experts() && size == k * n, op,
         "the shapes of operands and result match");
  const Tiles tiles(panels);
  for_experts(r, [&](std::int64_t e, std::int64_t first, std::int64_t count) {
    in_tiles(tiles, count, n, k, first * n, false, y,
             [&](std::int64_t i, std::int64_t m, std::int64_t j, std::int64_t columns,
                 std::int64_t l, std::int64_t depth) {
               gather(rows, first + i, m, l, depth, tiles.left());
               const std::int64_t at = e * size + (transposed ? j * k + l : l * n + j);
               if (transposed)
                 gather(weight, at, k, columns, depth, tiles.right());
               else
                 gather(weight, at, n, depth, columns, tiles.right());
               gemm(m, columns, depth, 1, {tiles.left(), depth, false},
                    {tiles.right(), transposed ? depth : columns, transposed}, 1, tiles.sum(),
                    columns);
             });
  });
}

void experts_forward(const Routes& r, RoutedRows x, ConstTensorView weight, TensorView y,
                     TensorView panels) {
  multiply("experts_forward", r, x, weight, true, y, panels);
}

void experts_backward_input(const Routes& r, RoutedRows d_y, ConstTensorView weight, TensorView d_x,
                            TensorView panels) {
  multiply("experts_backward_input", r, d_y, weight, false, d_x, panels);
}

void experts_backward_weight(const Routes& r, RoutedRows d_y, RoutedRows x, TensorView d_weight,
                             TensorView panels) {
  constexpr const char* op = "experts_backward_weight";
  expect_routes(r, op);
  const Rows left = rows_of(r, d_y, op), right = rows_of(r, x, op);
  const std::int64_t m = left.width, n = right.width;
  expect(d_weight.elements() == r.experts() * m * n, op, "the shapes of operands and result match");
  const Tiles tiles(panels);
  for_experts(r, [&](std::int64_t e, std::int64_t first, std::int64_t count) {
    in_tiles(tiles, m, n, count, e * m * n, true, d_weight,
             [&](std::int64_t i, std::int64_t rows, std::int64_t j, std::int64_t columns,
                 std::int64_t l, std::int64_t depth) {
               gather(left, first + l, depth, i, rows, tiles.left());
               gather(right, first + l, depth, j, columns, tiles.right());
               gemm(rows, columns, depth, 1, {tiles.left(), rows, true},
                    {tiles.right(), columns, false}, 1, tiles.sum(), columns);
             });
  });
}

void experts_sum(const Routes& r, ConstTensorView rows, bool accumulate, TensorView y) {
  constexpr const char* op = "experts_sum";
  expect_routes(r, op);
  const std::int64_t width = width_of(y);
  expect(y.shape[0] == r.tokens() && rows.elements() == r.rows() * width, op,
         "rows are as wide as y");
  const std::int32_t* places = int32_of(r.places);
  for (std::int64_t t = 0; t < r.tokens(); ++t)
    in_blocks(width, [&](std::int64_t first, std::int64_t n) {
      float sum[kBlock] = {}, v[kBlock];
      for (std::int64_t j = 0; j < r.active; ++j) {
        read(rows, places[t * r.active + j] * width + first, n, v);
        add_scaled(1, v, n, sum);
      }
      if (accumulate) {
        read(y, t * width + first, n, v);
        add_scaled(1, v, n, sum);
      }
      write(sum, t * width + first, n, y);
    });
}

// Activation --------------------------------------------------------------------------------------

void expect_gate(const char* op, const Routes& r, const ConstTensorView& gate_up,
                 const ConstTensorView& scores, const ConstTensorView& p) {
  expect_routes(r, op);
  expect(p.shape[0] == r.rows() && gate_up.elements() == 2 * p.elements() &&
             scores.elements() == r.rows(),
         op, "gate_up has two of p's rows in one");
}

void scored_gate_forward(Activation kind, const Routes& r, ConstTensorView gate_up,
                         ConstTensorView scores, TensorView p) {
  expect_gate("scored_gate_forward", r, gate_up, scores, p);
  const std::int64_t width = width_of(p);
  for (std::int64_t row = 0; row < r.rows(); ++row) {
    const float score = fp32_of(scores)[int32_of(r.pairs)[row]];
    in_blocks(width, [&](std::int64_t first, std::int64_t n) {
      float g[kBlock], u[kBlock];
      read(gate_up, row * 2 * width + first, n, g);
      read(gate_up, (row * 2 + 1) * width + first, n, u);
      for (std::int64_t i = 0; i < n; ++i) u[i] = score * (u[i] * activation(kind, g[i]).value);
      write(u, row * width + first, n, p);
    });
  }
}

void scored_gate_backward(Activation kind, const Routes& r, TensorView gate_up,
                          ConstTensorView scores, TensorView d_p, TensorView d_scores) {
  expect_gate("scored_gate_backward", r, gate_up, scores, d_p);
  const std::int64_t width = width_of(d_p);
  for (std::int64_t row = 0; row < r.rows(); ++row) {
    const std::int64_t pair = int32_of(r.pairs)[row];
    const float score = fp32_of(scores)[pair];
    float d_score = 0;
    in_blocks(width, [&](std::int64_t first, std::int64_t n) {
      const std::int64_t at = row * 2 * width + first;
      float g[kBlock], u[kBlock], d[kBlock];
      read(gate_up, at, n, g);
      read(gate_up, at + width, n, u);
      read(d_p, row * width + first, n, d);
      for (std::int64_t i = 0; i < n; ++i) {
        const ValueAndSlope f = activation(kind, g[i]);
        const float product = u[i] * f.value, scaled = score * d[i];
        d_score += d[i] * product;
        g[i] = scaled * u[i] * f.slope;
        u[i] = scaled * f.value;
        d[i] = score * product;
      }
      write(g, at, n, gate_up);
      write(u, at + width, n, gate_up);
      write(d, row * width + first, n, d_p);
    });
    if (d_scores) fp32_of(d_scores)[pair] = d_score;
  }
}

}  // namespace

void add_experts(KernelTable& table) {
  table.route = route;
  table.route_backward = route_backward;
  table.experts_forward = experts_forward;
  table.experts_backward_input = experts_backward_input;
  table.experts_backward_weight = experts_backward_weight;
  table.experts_sum = experts_sum;
  table.scored_gate_forward = scored_gate_forward;
  table.scored_gate_backward = scored_gate_backward;
}

}  // namespace plimsoll::kernels::host
