// The canonical sum of ranks' buffers (runtime/comm/communicator.h) in the memory of one GPU.
#pragma once

#include <span>

#include "kernels/tensor_view.h"

namespace plimsoll::kernels::cuda {

inline constexpr std::size_t kMostSummedRanks = 64;

// to[t][i] = the sum over the ranks of ranks[r][i], i = 0 .. count: fp32, bf16 and fp16 in fp32,
// fp64 in fp64, in one balanced tree, rounded once. `to` may be one or several of `ranks`. Queued
// on the thread's stream. Error{internal}: another dtype; Error{unsupported}: more ranks.
void rank_sum(std::span<const void* const> ranks, std::span<void* const> to, DType dtype,
              std::int64_t count);

}  // namespace plimsoll::kernels::cuda
