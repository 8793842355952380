// Attention that never stores its matrix: forward keeps one log-sum-exp per query and head, and
// backward makes the probabilities again from it.
#include <limits>
#include <vector>

#include "kernels/host/attention.h"

namespace plimsoll::kernels::host {

namespace {

constexpr std::int64_t kTile = 16;  // queries (backward: keys) that share one pass
using Tile = float[kTile][kBlock];

// Forward -----------------------------------------------------------------------------------------

struct Forward {
  const AttentionShape& s;
  const Dropout& dropout;
  ConstColumns q, k, v;
  TensorView out, logsumexp;
};

// Queries i0 to i0 + n of one head; the running maximum rescales what was summed before it.
void forward_tile(const Forward& f, std::int64_t sequence, std::int64_t head, std::int64_t i0,
                  std::int64_t n) {
  const AttentionShape& s = f.s;
  const std::int64_t d = s.head_dim, key_head = head / (s.heads / s.kv_heads);
  Tile q, sum;
  float most[kTile], total[kTile], k[kBlock], v[kBlock];
  std::vector<Dropper> kept(static_cast<std::size_t>(n), Dropper(f.dropout));  // one for each row
  for (std::int64_t r = 0; r < n; ++r) {
    read_head(s, f.q, sequence, head, i0 + r, q[r]);
    std::fill(sum[r], sum[r] + d, 0.0f);
    most[r] = -std::numeric_limits<float>::infinity();
    total[r] = 0;
  }
  for (std::int64_t j = first_key(s, i0); j < i0 + n; ++j) {
    read_head(s, f.k, sequence, key_head, j, k);
    read_head(s, f.v, sequence, key_head, j, v);
    for (std::int64_t r = 0; r < n; ++r) {
      if (!sees(s, i0 + r, j)) continue;
      const float score = score_of(s, dot(q[r], k, d));
      if (score > most[r]) {
        const float shrink = std::exp(most[r] - score);
        total[r] *= shrink;
        for (std::int64_t c = 0; c < d; ++c) sum[r][c] *= shrink;
        most[r] = score;
      }
      const float p = std::exp(score - most[r]);
      total[r] += p;
      const std::int64_t element = matrix_row(s, sequence, head, i0 + r) + j;
      add_scaled(p * kept[static_cast<std::size_t>(r)](element, 1), v, d, sum[r]);
    }
  }
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t c = 0; c < d; ++c) sum[r][c] /= total[r];
    write_head(s, sum[r], sequence, head, i0 + r, f.out);
    if (f.logsumexp)
      fp32_of(f.logsumexp)[row_at(s, sequence, head, i0 + r)] = most[r] + std::log(total[r]);
  }
}

void flash_forward(const AttentionShape& s, const Dropout& dropout, ConstColumns q, ConstColumns k,
                   ConstColumns v, TensorView out, TensorView logsumexp) {
  constexpr const char* op = "flash_forward";
  expect_shape(s, op);
  expect_heads(s, q, s.heads, op);
  expect_heads(s, k, s.kv_heads, op);
  expect_heads(s, v, s.kv_heads, op);
  expect_heads(s, out, s.heads, op);
  expect(!logsumexp || logsumexp.elements() == s.sequences * s.length * s.heads, op,
         "logsumexp is [sequences, heads, length]");
  const Forward f{s, dropout, q, k, v, out, logsumexp};
  for (std::int64_t sequence = 0; sequence < s.sequences; ++sequence)
    for (std::int64_t head = 0; head < s.heads; ++head)
      for (std::int64_t i = 0; i < s.length; i += kTile)
        forward_tile(f, sequence, head, i, std::min(kTile, s.length - i));
}

// Backward ----------------------------------------------------------------------------------------

// One (sequence, key head) group at a time.
struct Backward {
  const AttentionShape& s;
  const Dropout& dropout;
  ConstColumns d_out, q, k, v, out;
  const float* logsumexp;
  Columns d_q, d_k, d_v;
  float* row_sums;  // [heads of the group, length]: d_out · out
  float* d_q_sums;  // [heads of the group, length, d], or null: d_q itself is fp32

  std::int64_t group() const { return s.heads / s.kv_heads; }
  float* d_q_row(std::int64_t sequence, std::int64_t head, std::int64_t i) const {
    if (d_q_sums) return d_q_sums + (head % group() * s.length + i) * s.head_dim;
    return fp32_of(d_q.tensor) + head_at(s, d_q, sequence, head, i);
  }
};

void begin_group(const Backward& b, std::int64_t sequence, std::int64_t key_head) {
  const std::int64_t d = b.s.head_dim;
  float d_out[kBlock], out[kBlock];
  for (std::int64_t g = 0; g < b.group(); ++g)
    for (std::int64_t i = 0; i < b.s.length; ++i) {
      const std::int64_t head = key_head * b.group() + g;
      read_head(b.s, b.d_out, sequence, head, i, d_out);
      read_head(b.s, b.out, sequence, head, i, out);
      b.row_sums[g * b.s.length + i] = dot(d_out, out, d);
      float* row = b.d_q_row(sequence, head, i);
      std::fill(row, row + d, 0.0f);
    }
}

struct KeyTile {
  std::int64_t sequence, key_head, first, count;
  Tile k, v, d_k, d_v;
};

// What query i of a head adds to the gradients of the tile's keys, and to its own.
void add_query(const Backward& b, KeyTile& t, std::int64_t head, std::int64_t i) {
  const AttentionShape& s = b.s;
  const std::int64_t d = s.head_dim;
  float q[kBlock], d_out[kBlock];
  read_head(s, b.q, t.sequence, head, i, q);
  read_head(s, b.d_out, t.sequence, head, i, d_out);
  const float logsumexp = b.logsumexp[row_at(s, t.sequence, head, i)];
  const float row_sum = b.row_sums[head % b.group() * s.length + i];
  float* d_q = b.d_q_row(t.sequence, head, i);
  Dropper dropper(b.dropout);
  for (std::int64_t r = 0; r < t.count; ++r) {
    const std::int64_t j = t.first + r;
    if (!sees(s, i, j)) continue;
    const float score = score_of(s, dot(q, t.k[r], d)), p = std::exp(score - logsumexp);
    const float kept = dropper(matrix_row(s, t.sequence, head, i) + j, 1);
    add_scaled(p * kept, d_out, d, t.d_v[r]);
    const float d_score =
        p * (dot(d_out, t.v[r], d) * kept - row_sum) * slope_of(s, score) * s.scale;
    add_scaled(d_score, q, d, t.d_k[r]);
    add_scaled(d_score, t.k[r], d, d_q);
  }
}

void backward_keys(const Backward& b, std::int64_t sequence, std::int64_t key_head,
                   std::int64_t first) {
  const AttentionShape& s = b.s;
  KeyTile t;
  t.sequence = sequence, t.key_head = key_head, t.first = first;
  t.count = std::min(kTile, s.length - first);
  for (std::int64_t r = 0; r < t.count; ++r) {
    read_head(s, b.k, sequence, key_head, first + r, t.k[r]);
    read_head(s, b.v, sequence, key_head, first + r, t.v[r]);
    std::fill(t.d_k[r], t.d_k[r] + s.head_dim, 0.0f);
    std::fill(t.d_v[r], t.d_v[r] + s.head_dim, 0.0f);
  }
  const std::int64_t end =
      s.window > 0 ? std::min(s.length, first + t.count - 1 + s.window) : s.length;
  for (std::int64_t g = 0; g < b.group(); ++g)
    for (std::int64_t i = first; i < end; ++i) add_query(b, t, key_head * b.group() + g, i);
  for (std::int64_t r = 0; r < t.count; ++r) {
    write_head(s, t.d_k[r], sequence, key_head, first + r, b.d_k);
    write_head(s, t.d_v[r], sequence, key_head, first + r, b.d_v);
  }
}

void backward_group(const Backward& b, std::int64_t sequence, std::int64_t key_head) {
  begin_group(b, sequence, key_head);
  for (std::int64_t j = 0; j < b.s.length; j += kTile) backward_keys(b, sequence, key_head, j);
  if (!b.d_q_sums) return;
  for (std::int64_t g = 0; g < b.group(); ++g)
    for (std::int64_t i = 0; i < b.s.length; ++i) {
      const std::int64_t head = key_head * b.group() + g;
      write_head(b.s, b.d_q_row(sequence, head, i), sequence, head, i, b.d_q);
    }
}

void flash_backward(const AttentionShape& s, const Dropout& dropout, ConstTensorView d_out,
                    ConstColumns q, ConstColumns k, ConstColumns v, ConstTensorView out,
                    ConstTensorView logsumexp, Columns d_q, Columns d_k, Columns d_v,
                    TensorView scratch) {
  constexpr const char* op = "flash_backward";
  expect_shape(s, op);
  for (const ConstColumns& x : {q, ConstColumns(d_q), ConstColumns(d_out), ConstColumns(out)})
    expect_heads(s, x, s.heads, op);
  for (const ConstColumns& x : {k, v, ConstColumns(d_k), ConstColumns(d_v)})
    expect_heads(s, x, s.kv_heads, op);
  expect(logsumexp.elements() == s.sequences * s.length * s.heads, op,
         "logsumexp is [sequences, heads, length]");
  const std::int64_t queries = s.heads / s.kv_heads * s.length;
  const bool direct = d_q.tensor.dtype == DType::fp32;
  expect(scratch.elements() >= queries * (direct ? 1 : 1 + s.head_dim), op,
         "scratch holds at least one group");
  float* sums = fp32_of(scratch);
  const Backward b{s,
                   dropout,
                   d_out,
                   q,
                   k,
                   v,
                   out,
                   fp32_of(logsumexp),
                   d_q,
                   d_k,
                   d_v,
                   sums,
                   direct ? nullptr : sums + queries};
  for (std::int64_t sequence = 0; sequence < s.sequences; ++sequence)
    for (std::int64_t head = 0; head < s.kv_heads; ++head) backward_group(b, sequence, head);
}

}  // namespace

void add_flash_attention(KernelTable& table) {
  table.flash_forward = flash_forward;
  table.flash_backward = flash_backward;
}

}  // namespace plimsoll::kernels::host
