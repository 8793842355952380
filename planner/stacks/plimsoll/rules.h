// How a step is written.
#pragma once

#include <cstdint>

#include "planner/program/work.h"

namespace plimsoll::planner::plimsoll_stack {

struct Rules {
  std::int64_t granularity = 1;  // requested bytes; kBlock: the blocks that the arena hands out
  bool deterministic = false;  // every stage reduces after every micro-batch
  Works* works = nullptr;  // what the ops ask of the GPU, for who asks
};

}  // namespace plimsoll::planner::plimsoll_stack
