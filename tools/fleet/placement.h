// Jobs to nodes: an integer program whose answer is exact about nodes, not only about sums of GPUs.
#pragma once

#include "reports/fleet.h"

namespace plimsoll::tools {

// Fills in `owned` and `purchase` from pools, jobs and their options. A job of at most a node's
// GPUs stays within one node; a larger one takes whole nodes. `seconds`: for each of the (at most
// six) solutions. Error{unsupported}: no solver; Error{bad_input}: a pool whose nodes can be shared
// in too many ways.
void place(reports::Fleet& fleet, double seconds);

// The ways to share a node of `gpus` among jobs of these sizes, into which no further job goes: how
// many of each size. `most`: more ways than that give an empty list.
std::vector<std::vector<std::int64_t>> full_patterns(std::int64_t gpus,
                                                     const std::vector<std::int64_t>& sizes,
                                                     std::size_t most);

}  // namespace plimsoll::tools
