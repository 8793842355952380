// Workloads in which every two settings occur together.
#pragma once

#include <vector>

#include "tests/witness/case.h"

namespace plimsoll::witness {

// At least `least` different ones, drawn by `seed`, and after them as many as it takes until every
// pair of values of two settings has occurred.
std::vector<Case> covering(std::size_t least, std::uint64_t seed);

}  // namespace plimsoll::witness
