// How the head and the cross-entropy are computed; every row's statistics in fp32.
//
//   full     logits of all tokens of the micro-batch in the compute dtype; the loss kernel reads
//            them once and writes their gradient in place
//   chunked  chunk by chunk: forward keeps the log-sum-exp of each row, backward multiplies a
//            chunk's logits again, overwrites them with their gradient, accumulates the head's
//            weight gradient and writes the input's gradient over the input
//   fused    the same, but forward and backward of a chunk at once: no GEMM is made twice
// All chunks use one buffer of logits, as large as the first; chunked has one in forward and one in
// backward. The factor of the gradient, 1 / (tokens · micro-batches) times the loss scale, is known
// before the forward.
#pragma once

#include <algorithm>

#include "models/base/dtype.h"

namespace plimsoll::models::decisions {

// Logits of one chunk take at most this. Each chunk reads and writes the head's weight gradient
// once more: for Llama-3's vocabulary in bf16 512 MiB are 2048 rows, and that costs about 5 % of
// the head's GEMMs on an H200; half as many rows would cost 9 %.
inline constexpr Bytes kLossChunk(512 << 20);
inline constexpr std::int64_t kLeastChunkRows = 128;  // one tile of a GEMM

// Elements from one row of logits to the next: rows begin at multiples of 16 bytes, so that
// tensor cores and vector loads take them whatever the vocabulary (with GPT-2's 50257 columns side
// by side, none of either would). What lies behind a row's logits is neither written nor read.
constexpr std::int64_t logits_stride(std::int64_t vocabulary, DType dtype) {
  const std::int64_t vector = 128 / bits(dtype);
  return ceil_divide(vocabulary, vector) * vector;
}

// Rows of a chunk: a power of two; the last chunk may be shorter.
inline std::int64_t loss_chunk_rows(std::int64_t vocabulary, DType dtype) {
  std::int64_t rows = kLeastChunkRows;
  const std::int64_t row = std::max<std::int64_t>(logits_stride(vocabulary, dtype), 1);
  while (rows * 2 <= kLossChunk.value() / storage(Count(1), dtype).value() / row) rows *= 2;
  return rows;
}

}  // namespace plimsoll::models::decisions
