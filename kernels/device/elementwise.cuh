// The frame of every op that makes element i of its results from element i of its operands.
//
// Thread mapping: a thread takes eight consecutive elements, then those a grid further on; what is
// left at the end, and everything where an operand is not aligned to 16 bytes, goes one by one.
// Memory: each operand is read once and each result written once.
// A result may be an operand: a thread reads all of its elements before it writes any.
#pragma once

#include "kernels/device/span.cuh"

namespace plimsoll::kernels::device {

template <int kReads, int kWrites>
struct Operands {
  Span in[kReads];
  Span out[kWrites];
  std::int64_t elements;
  bool vectors;
};

__device__ __forceinline__ std::int64_t grid_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ std::int64_t grid_threads() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

// Op: `typename Op::State` a thread's own, made new for each visit; op(state, i, in, out) with the
// values of element i, in[kReads] and out[kWrites].
template <class Op, int kReads, int kWrites>
__device__ __forceinline__ void visit(const Op& op, const Operands<kReads, kWrites>& o,
                                      std::int64_t i, int n, bool vectors) {
  float in[kReads][kVector], out[kWrites][kVector];
  if (vectors) {
    Raw raw[kReads];
    for (int r = 0; r < kReads; ++r) raw[r] = fetch(o.in[r], i);
    for (int r = 0; r < kReads; ++r) widen(o.in[r], raw[r], in[r]);
  } else {
    for (int r = 0; r < kReads; ++r) in[r][0] = load_one(o.in[r], i);
  }
  typename Op::State state{};
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    if (e >= n) break;
    float given[kReads], made[kWrites];
    for (int r = 0; r < kReads; ++r) given[r] = in[r][e];
    op(state, i + e, given, made);
    for (int w = 0; w < kWrites; ++w) out[w][e] = made[w];
  }
  for (int w = 0; w < kWrites; ++w) {
    if (vectors)
      store(o.out[w], i, out[w]);
    else
      store_one(o.out[w], i, out[w][0]);
  }
}

inline constexpr int kStridedThreads = 256;  // of a block

template <class Op, int kReads, int kWrites>
__global__ void __launch_bounds__(kStridedThreads) elementwise(Op op, Operands<kReads, kWrites> o) {
  const std::int64_t groups = o.vectors ? o.elements / kVector : 0;
  for (std::int64_t g = grid_thread(); g < groups; g += grid_threads())
    visit(op, o, g * kVector, kVector, true);
  for (std::int64_t i = groups * kVector + grid_thread(); i < o.elements; i += grid_threads())
    visit(op, o, i, 1, false);
}

struct Nothing {};

}  // namespace plimsoll::kernels::device
