// Attention with a stored matrix, one op at a time.
#include <limits>

#include "kernels/host/attention.h"

namespace plimsoll::kernels::host {

namespace {

constexpr std::int64_t kTile = 16;

// Visits every (sequence, head, query).
template <class Visit>
void for_queries(const AttentionShape& s, Visit visit) {
  for (std::int64_t sequence = 0; sequence < s.sequences; ++sequence)
    for (std::int64_t head = 0; head < s.heads; ++head)
      for (std::int64_t i = 0; i < s.length; ++i) visit(sequence, head, i);
}

// A row of the matrix: the GEMMs of `x` with the heads of `keys` as `of` makes them, `hidden`
// where the mask hides.
template <class Of>
void write_products(const AttentionShape& s, Of of, float hidden, const float* x,
                    const ConstColumns& keys, std::int64_t sequence, std::int64_t head,
                    std::int64_t i, const TensorView& p) {
  const std::int64_t key_head = head / (s.heads / s.kv_heads);
  in_blocks(s.length, [&](std::int64_t first, std::int64_t n) {
    float values[kBlock], key[kBlock];
    for (std::int64_t j = 0; j < n; ++j) {
      values[j] = hidden;
      if (!sees(s, i, first + j)) continue;
      read_head(s, keys, sequence, key_head, first + j, key);
      values[j] = of(dot(x, key, s.head_dim));
    }
    write(values, matrix_row(s, sequence, head, i) + first, n, p);
  });
}

// Query rows: y[i] = factor · sum over j of p[i, j] · x[j].
void sum_over_keys(const AttentionShape& s, float factor, const ConstTensorView& p,
                   const ConstColumns& x, const Columns& y) {
  for_queries(s, [&](std::int64_t sequence, std::int64_t head, std::int64_t i) {
    float sum[kBlock] = {};
    in_blocks(i + 1, [&](std::int64_t first, std::int64_t n) {
      float values[kBlock], key[kBlock];
      read(p, matrix_row(s, sequence, head, i) + first, n, values);
      for (std::int64_t j = 0; j < n; ++j) {
        if (!sees(s, i, first + j)) continue;
        read_head(s, x, sequence, head / (s.heads / s.kv_heads), first + j, key);
        add_scaled(factor * values[j], key, s.head_dim, sum);
      }
    });
    write_head(s, sum, sequence, head, i, y);
  });
}

// Key rows: y[j] = factor · sum over the group's heads and i of p[i, j] · x[i].
void sum_over_queries(const AttentionShape& s, float factor, const ConstTensorView& p,
                      const ConstColumns& x, const Columns& y, std::int64_t sequence,
                      std::int64_t key_head, std::int64_t first) {
  const std::int64_t group = s.heads / s.kv_heads, n = std::min(kTile, s.length - first);
  float sum[kTile][kBlock] = {}, values[kTile], query[kBlock];
  for (std::int64_t head = key_head * group; head < (key_head + 1) * group; ++head)
    for (std::int64_t i = first; i < s.length; ++i) {
      read(p, matrix_row(s, sequence, head, i) + first, n, values);
      read_head(s, x, sequence, head, i, query);
      for (std::int64_t j = 0; j < n; ++j)
        if (sees(s, i, first + j)) add_scaled(factor * values[j], query, s.head_dim, sum[j]);
    }
  for (std::int64_t j = 0; j < n; ++j) write_head(s, sum[j], sequence, key_head, first + j, y);
}
void sum_over_queries(const AttentionShape& s, float factor, const ConstTensorView& p,
                      const ConstColumns& x, const Columns& y) {
  for (std::int64_t sequence = 0; sequence < s.sequences; ++sequence)
    for (std::int64_t head = 0; head < s.kv_heads; ++head)
      for (std::int64_t j = 0; j < s.length; j += kTile)
        sum_over_queries(s, factor, p, x, y, sequence, head, j);
}

void expect_operands(const AttentionShape& s, const ConstTensorView& p, const ConstColumns& queries,
                     const ConstColumns& keys, const char* op) {
  expect_shape(s, op);
  expect_matrix(s, p, op);
  expect_heads(s, queries, s.heads, op);
  expect_heads(s, keys, s.kv_heads, op);
}

void attention_scores(const AttentionShape& s, ConstColumns q, ConstColumns k, TensorView p) {
  expect_operands(s, p, q, k, "attention_scores");
  for_queries(s, [&](std::int64_t sequence, std::int64_t head, std::int64_t i) {
    float query[kBlock];
    read_head(s, q, sequence, head, i, query);
    write_products(
        s, [&](float product) { return score_of(s, product); },
        -std::numeric_limits<float>::infinity(), query, k, sequence, head, i, p);
  });
}

void softmax_forward(TensorView p) {
  const std::int64_t width = p.shape[p.shape.rank - 1];
  const std::int64_t rows = width == 0 ? 0 : p.elements() / width;
  for (std::int64_t r = 0; r < rows; ++r) {
    float v[kBlock], most = -std::numeric_limits<float>::infinity(), total = 0;
    in_blocks(width, [&](std::int64_t first, std::int64_t n) {
      read(p, r * width + first, n, v);
      for (std::int64_t i = 0; i < n; ++i) most = std::max(most, v[i]);
    });
    in_blocks(width, [&](std::int64_t first, std::int64_t n) {
      read(p, r * width + first, n, v);
      for (std::int64_t i = 0; i < n; ++i) total += std::exp(v[i] - most);
    });
    in_blocks(width, [&](std::int64_t first, std::int64_t n) {
      read(p, r * width + first, n, v);
      for (std::int64_t i = 0; i < n; ++i) v[i] = std::exp(v[i] - most) / total;
      write(v, r * width + first, n, p);
    });
  }
}

void attention_values(const AttentionShape& s, ConstTensorView p, ConstColumns v, TensorView out) {
  expect_operands(s, p, out, v, "attention_values");
  sum_over_keys(s, 1, p, v, out);
}

void attention_values_backward(const AttentionShape& s, ConstTensorView p, ConstTensorView d_out,
                               Columns d_v) {
  expect_operands(s, p, d_out, d_v, "attention_values_backward");
  sum_over_queries(s, 1, p, d_out, d_v);
}

void attention_probabilities_backward(const AttentionShape& s, ConstTensorView d_out,
                                      ConstColumns v, TensorView d_p) {
  expect_operands(s, d_p, d_out, v, "attention_probabilities_backward");
  for_queries(s, [&](std::int64_t sequence, std::int64_t head, std::int64_t i) {
    float d[kBlock];
    read_head(s, d_out, sequence, head, i, d);
    write_products(
        s, [](float product) { return product; }, 0, d, v, sequence, head, i, d_p);
  });
}

void softmax_backward(ConstTensorView p, const Dropout& dropout, TensorView d_p) {
  expect(p.shape == d_p.shape, "softmax_backward", "d_p has p's shape");
  const std::int64_t width = p.shape[p.shape.rank - 1];
  const std::int64_t rows = width == 0 ? 0 : p.elements() / width;
  float y[kBlock], d[kBlock];
  const auto load = [&](std::int64_t at, std::int64_t n) {
    read(p, at, n, y);
    read(d_p, at, n, d);
    drop(dropout, at, n, d);
  };
  for (std::int64_t r = 0; r < rows; ++r) {
    float sum = 0;
    in_blocks(width, [&](std::int64_t first, std::int64_t n) {
      load(r * width + first, n);
      sum += dot(y, d, n);
    });
    in_blocks(width, [&](std::int64_t first, std::int64_t n) {
      load(r * width + first, n);
      for (std::int64_t i = 0; i < n; ++i) d[i] = y[i] * (d[i] - sum);
      write(d, r * width + first, n, d_p);
    });
  }
}

// d_p becomes the gradient of the scores before their cap.
void through_cap(const AttentionShape& s, const ConstColumns& q, const ConstColumns& k,
                 const TensorView& d_p) {
  for_queries(s, [&](std::int64_t sequence, std::int64_t head, std::int64_t i) {
    float query[kBlock], key[kBlock], values[kBlock];
    read_head(s, q, sequence, head, i, query);
    in_blocks(i + 1, [&](std::int64_t first, std::int64_t n) {
      read(d_p, matrix_row(s, sequence, head, i) + first, n, values);
      for (std::int64_t j = 0; j < n; ++j) {
        if (!sees(s, i, first + j)) continue;
        read_head(s, k, sequence, head / (s.heads / s.kv_heads), first + j, key);
        values[j] *= slope_of(s, score_of(s, dot(query, key, s.head_dim)));
      }
      write(values, matrix_row(s, sequence, head, i) + first, n, d_p);
    });
  });
}

void attention_scores_backward(const AttentionShape& s, TensorView d_p, ConstColumns q,
                               ConstColumns k, Columns d_q, Columns d_k) {
  expect_operands(s, d_p, q, k, "attention_scores_backward");
  expect_operands(s, d_p, d_q, d_k, "attention_scores_backward");
  if (s.cap > 0) through_cap(s, q, k, d_p);
  sum_over_keys(s, s.scale, d_p, k, d_q);
  sum_over_queries(s, s.scale, d_p, q, d_k);
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

}  // namespace plimsoll::kernels::host
