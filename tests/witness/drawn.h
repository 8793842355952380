// Workloads drawn by seed, far more widely than covering.h's: shapes, families, what is trained.
#pragma once

#include <vector>

#include "tests/witness/case.h"

namespace plimsoll::witness {

// The same for the same seed on every machine.
Case drawn(std::uint64_t seed);
// With --precision fp8-mixed, of what our own runtime has in it.
Case drawn_in_float8(std::uint64_t seed);
// The first of them, by seed, that are planned.
std::vector<Case> planned_in_float8(std::size_t count);

// A vocabulary so large that the loss goes through two chunks, of 128 tokens and of 2.
Case two_chunks(models::Loss loss);

}  // namespace plimsoll::witness
