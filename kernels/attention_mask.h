// Who sees whom, and where rows of heads lie: shared by the host's attention and its CUDA twins.
#pragma once

#include <algorithm>

#include "kernels/attention_kernels.h"

namespace plimsoll::kernels {

// The first key that query i sees; the last is i.
constexpr std::int64_t first_key(const AttentionShape& s, std::int64_t i) {
  return s.window > 0 && i - s.window + 1 > 0 ? i - s.window + 1 : 0;
}
constexpr bool sees(const AttentionShape& s, std::int64_t i, std::int64_t j) {
  return j <= i && j >= first_key(s, i);
}
// One behind the last query that sees key j.
constexpr std::int64_t end_query(const AttentionShape& s, std::int64_t j) {
  return s.window > 0 && j + s.window < s.length ? j + s.window : s.length;
}
// Of log-sum-exp.
constexpr std::int64_t row_at(const AttentionShape& s, std::int64_t sequence, std::int64_t head,
                              std::int64_t i) {
  return (sequence * s.heads + head) * s.length + i;
}
// Of the dropout's counter and of the stored matrix.
constexpr std::int64_t matrix_row(const AttentionShape& s, std::int64_t sequence, std::int64_t head,
                                  std::int64_t i) {
  return row_at(s, sequence, head, i) * s.length;
}

}  // namespace plimsoll::kernels
