// Loads that are planned against loads on a CUDA runtime that computes nothing:
// tests/golden/load_runs_*.json (tools/oracle/load_runs.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "planner/plan.h"

namespace plimsoll::tests {

// What load_of() refuses the question with; "" where it does not.
std::string refusal_of(const planner::Question& question);

// Checks every stage to the byte; of loads to train, where four threads load (device_map without
// packing), within what a block of another order leaves, and of packed checkpoints within what they
// have read ahead. `least`: so many runs or more are planned; `refusals`: so many
// are not.
void check_runs(const std::string& file, std::size_t least, std::size_t refusals = 0,
                std::int64_t reserved_percent = 0);

}  // namespace plimsoll::tests
