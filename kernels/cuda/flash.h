// What the streaming attention kernels share: their operands, and who takes which.
#pragma once

#include "kernels/attention_mask.h"
#include "kernels/cuda/operands.h"

namespace plimsoll::kernels::cuda {

// Rows of heads: element (token, column of a head).
struct Heads {
  Span span;
  std::int64_t stride = 0, first = 0, step = 0;

  // Of the first token of a sequence.
  __host__ __device__ std::int64_t at(const AttentionShape& s, std::int64_t sequence,
                                      std::int64_t head) const {
    return sequence * s.length * stride + first + head * (step > 0 ? step : s.head_dim);
  }
};
inline Heads heads_of(const ConstColumns& x) {
  return {span_of(x.tensor), x.stride(), x.first, x.step};
}

struct Flash {
  AttentionShape s;
  device::Dropper drop;
  Heads q, k, v, out, d_out, d_q, d_k, d_v;  // the last four: backward
  float* logsumexp = nullptr;  // [sequences, heads, length], or null
  float* row_sums = nullptr;  // [groups, heads of the group, length]: d_out · out
  std::int64_t first_group = 0;  // of (sequence, key head), that row_sums begins with
  std::int64_t groups = 0;

  __host__ __device__ std::int64_t group() const { return s.heads / s.kv_heads; }
};

// Whether every row of a head begins at a multiple of 16 bytes and holds whole vectors.
bool takes_vectors(const Flash& f, std::initializer_list<Heads> operands);

// The kernels of flash_plain.cu: any storage, any head_dim.
void start_plain_forward(const Flash& f);
void start_plain_backward(const Flash& f);

// Those of flash_mma.cu: tensor cores, for operands of one 16-bit type.
bool takes_mma(const Flash& f, std::initializer_list<ConstColumns> operands);
void start_mma_forward(const Flash& f);
void start_mma_backward(const Flash& f);

// row_sums of the groups at hand.
void start_row_sums(const Flash& f);

}  // namespace plimsoll::kernels::cuda
