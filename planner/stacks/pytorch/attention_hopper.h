// What the third generation of FlashAttention asks the allocator for (Dao-AILab/flash-attention
// @0251105a, hopper/flash_api.cpp, mha_fwd and mha_bwd on Hopper; arXiv 2407.08608).
#pragma once

#include <array>

#include "planner/program/sym_int.h"

namespace plimsoll::planner::pytorch {

struct HopperAttention {
  SymInt samples, tokens, length;  // tokens that are no padding; of the longest sample
  // Samples of several lengths behind one another; else `samples` of `length`.
  bool varies = false;
  bool causal = true;  // without a window
  bool windowed = false;
  bool soft_cap = false;
  bool groups = false;  // fewer key heads than query heads
  std::int64_t heads = 1, kv_heads = 1, head_dim = 64;
};

// Numbers of 4 bytes each. Of a forward: how its tiles are scheduled; 0 where nothing ends early.
SymInt hopper_schedule(const HopperAttention& of);
// Of a backward: row sums of dO·O, logsumexps in base 2, dQ, dK, dV, counters of tiles.
std::array<SymInt, 6> hopper_backward(const HopperAttention& of);

}  // namespace plimsoll::planner::pytorch
