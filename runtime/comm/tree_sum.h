// The canonical sum of communicator.h, of buffers that this thread can read.
#pragma once

#include <span>

#include "kernels/tensor_view.h"

namespace plimsoll::runtime::comm {

// to[i] = the sum over the ranks of ranks[r][i], i = 0 .. count; `to` may be one or several of
// them. fp32, bf16, fp16, fp64; anything else is Error{internal}.
void tree_sum(std::span<const void* const> ranks, std::span<void* const> to, DType dtype,
              std::int64_t count);

}  // namespace plimsoll::runtime::comm
