// Normal numbers out of Philox's words: the same on every machine up to its rounding, and as fast
// as initial weights by the billion need.
#pragma once

#include <span>

#include "kernels/philox.h"

namespace plimsoll::runtime::io {

// Numbers of blocks first_block, first_block + 1, …, four of each; into.size() is a multiple of 4.
// Box and Muller (1958): words 0, 1 and words 2, 3 of a block give sqrt(-2 ln u) · cos(2 pi v) and
// the same with sin; u and v = (word + 1/2) / 2^32. In fp32, within 1e-6 of the exact value; at
// most 6.8 in size.
void standard_normals(const kernels::RandomKey& key, std::uint64_t first_block,
                      std::span<float> into);

}  // namespace plimsoll::runtime::io
