// What streaming and materialised attention share: the operands' shapes, and rows of heads in fp32.
#pragma once

#include "kernels/attention_mask.h"
#include "kernels/host/blocks.h"
#include "kernels/host/soft_cap.h"

namespace plimsoll::kernels::host {

inline std::int64_t head_at(const AttentionShape& s, const ConstColumns& x, std::int64_t sequence,
                            std::int64_t head, std::int64_t i) {
  return (sequence * s.length + i) * x.stride() + x.first + head * x.head_step(s.head_dim);
}
inline void read_head(const AttentionShape& s, const ConstColumns& x, std::int64_t sequence,
                      std::int64_t head, std::int64_t i, float* to) {
  read(x.tensor, head_at(s, x, sequence, head, i), s.head_dim, to);
}
inline void write_head(const AttentionShape& s, const float* from, std::int64_t sequence,
                       std::int64_t head, std::int64_t i, const Columns& x) {
  write(from, head_at(s, x, sequence, head, i), s.head_dim, x.tensor);
}

// A score from its product of query and key; what its gradient is multiplied with.
inline float score_of(const AttentionShape& s, float product) {
  const float score = s.scale * product;
  return s.cap > 0 ? soft_capped(score, s.cap) : score;
}
inline float slope_of(const AttentionShape& s, float score) {
  return s.cap > 0 ? soft_cap_slope(score, s.cap) : 1;
}

// Throws Error{internal} where the shape is none, or a view does not have it.
inline void expect_shape(const AttentionShape& s, const char* op) {
  expect(s.heads > 0 && s.kv_heads > 0 && s.heads % s.kv_heads == 0 && s.head_dim > 0 &&
             s.head_dim <= kBlock && s.sequences >= 0 && s.length >= 0 && s.window >= 0 &&
             s.cap >= 0,
         op, "heads are a multiple of key heads, head_dim is at most 512");
}
inline void expect_heads(const AttentionShape& s, const ConstColumns& x, std::int64_t heads,
                         const char* op) {
  expect(x.rows() == s.sequences * s.length && (x.rows() == 0 || x.width == heads * s.head_dim) &&
             (x.rows() == 0 || x.end(s.head_dim) <= x.stride()),
         op, "a view is [T, heads · head_dim]");
}
inline void expect_matrix(const AttentionShape& s, const ConstTensorView& p, const char* op) {
  expect(p.shape == Extents({s.sequences, s.heads, s.length, s.length}), op,
         "the matrix is [sequences, heads, length, length]");
}

}  // namespace plimsoll::kernels::host
