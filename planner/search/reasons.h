// Why a plan stands where it stands: what simpler ones lack, what limits it, what more would bring.
#pragma once

#include <string>
#include <vector>

#include "planner/search/search.h"

namespace plimsoll::planner::search {

// One list of sentences for each of `ranked`. The first plan's says which rungs of the ladder (DDP,
// ZeRO-1, 2, 3, groups, recomputation, other numerics, adapters) do not fit or are slower, found by
// searching each of them.
std::vector<std::vector<std::string>> reasons(const Scope& scope, const std::vector<Found>& ranked,
                                              const Control& control);

}  // namespace plimsoll::planner::search
