#include <algorithm>
#include <numeric>

#include "kernels/host/blocks.h"

namespace plimsoll::kernels::host {

namespace {

void check_id(std::int32_t id, std::int64_t rows) {
  check(id >= 0 && id < rows, ErrorKind::bad_input, [&] {
    return "token id " + std::to_string(id) + " is not below the vocabulary's " +
           std::to_string(rows) + " rows";
  });
}

void embedding_forward(ConstTensorView ids, ConstTensorView table, ConstTensorView positions,
                       std::int64_t length, const Dropout& dropout, TensorView out) {
  const std::int64_t tokens = ids.elements(), width = table.shape[1];
  expect(out.elements() == tokens * width, "embedding_forward", "out is [T, h]");
  expect(!positions || (positions.shape[1] == width && positions.shape[0] >= length && length > 0),
         "embedding_forward", "positions are [>= length, h]");
  const std::int32_t* id = int32_of(ids);
  for (std::int64_t t = 0; t < tokens; ++t) {
    check_id(id[t], table.shape[0]);
    in_blocks(width, [&](std::int64_t first, std::int64_t n) {
      float v[kBlock], p[kBlock];
      read(table, id[t] * width + first, n, v);
      if (positions) {
        read(positions, t % length * width + first, n, p);
        add_scaled(1, p, n, v);
      }
      drop(dropout, t * width + first, n, v);
      write(v, t * width + first, n, out);
    });
  }
}

// gradient[row, :] += the rows of d_out that `tokens` yields, summed in fp32: tokens(k) for k <
// count.
template <class Token>
void add_rows(const ConstTensorView& d_out, std::int64_t width, std::int64_t count, Token token,
              std::int64_t row, const TensorView& gradient) {
  in_blocks(width, [&](std::int64_t first, std::int64_t n) {
    float sum[kBlock] = {}, v[kBlock];
    for (std::int64_t k = 0; k < count; ++k) {
      read(d_out, token(k) * width + first, n, v);
      add_scaled(1, v, n, sum);
    }
    read(gradient, row * width + first, n, v);
    for (std::int64_t i = 0; i < n; ++i) v[i] += sum[i];
    write(v, row * width + first, n, gradient);
  });
}

void add_to_table(const ConstTensorView& ids, const ConstTensorView& d_out, std::int64_t width,
                  const TensorView& d_table, const TensorView& sorted) {
  const std::int64_t tokens = ids.elements();
  expect(sorted.elements() >= tokens && d_table.shape[1] == width, "embedding_backward",
         "d_table is [V, h], the scratch [4, T]");
  const std::int32_t* id = int32_of(ids);
  std::int32_t* order = int32_of(sorted);
  std::iota(order, order + tokens, 0);
  std::sort(order, order + tokens,
            [&](std::int32_t a, std::int32_t b) { return id[a] != id[b] ? id[a] < id[b] : a < b; });
  for (std::int64_t first = 0, last = 0; first < tokens; first = last) {
    const std::int32_t row = id[order[first]];
    check_id(row, d_table.shape[0]);
    while (last < tokens && id[order[last]] == row) ++last;
    add_rows(
        d_out, width, last - first, [&](std::int64_t k) { return std::int64_t{order[first + k]}; },
        row, d_table);
  }
}

void embedding_backward(ConstTensorView ids, std::int64_t length, const Dropout& dropout,
                        TensorView d_out, TensorView d_table, TensorView d_positions,
                        TensorView sorted) {
  const std::int64_t tokens = ids.elements();
  if (tokens == 0) return;
  expect(d_out.elements() % tokens == 0, "embedding_backward", "d_out is [T, h]");
  const std::int64_t width = d_out.elements() / tokens;
  if (dropout.rate > 0)
    in_blocks(d_out.elements(), [&](std::int64_t first, std::int64_t n) {
      float v[kBlock];
      read(d_out, first, n, v);
      drop(dropout, first, n, v);
      write(v, first, n, d_out);
    });
  if (d_table) add_to_table(ids, d_out, width, d_table, sorted);
  if (!d_positions) return;
  expect(length > 0 && d_positions.shape[0] >= std::min(length, tokens) &&
             d_positions.shape[1] == width,
         "embedding_backward", "d_positions is [>= length, h]");
  for (std::int64_t p = 0; p < std::min(length, tokens); ++p)
    add_rows(
        d_out, width, ceil_divide(tokens - p, length),
        [&](std::int64_t k) { return k * length + p; }, p, d_positions);
}

}  // namespace

void add_embedding(KernelTable& table) {
  table.embedding_forward = embedding_forward;
  table.embedding_backward = embedding_backward;
}

}  // namespace plimsoll::kernels::host
