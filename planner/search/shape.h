// Strategies that have one program, but for the number of ranks that share parameters.
#pragma once

#include <cstdint>

#include "models/run_spec.h"

namespace plimsoll::planner::search {

// One strategy for all whose programs have its structure, with the number of ranks that share
// parameters as a variable of their sizes (value_of_shards); the strategy itself where its writers
// do more with that number.
models::Strategy shape_of(const models::Strategy& strategy);
std::int64_t shards_of(const models::Strategy& strategy);

}  // namespace plimsoll::planner::search
