// Programs, starts and blocks of ops made at random, for an allocator's replay.
#pragma once

#include "planner/memory/reserved.h"

namespace plimsoll::tests {

struct DrawnRequests {
  models::StepProgram program;
  planner::Start start;
  models::AllocatorConf conf;
  planner::Room room;
};

// Groups of layers, tensors of every residency on two streams, with sizes of both pools on both
// sides of their limits; blocks of an op one by one, tensors of several blocks; what is held and
// taken before the first step, at a first use and between the steps; every setting of the
// allocator.
DrawnRequests drawn_requests(unsigned seed);

}  // namespace plimsoll::tests
