// What ZeRO-3 has gathered at a time, beside persistent parameters, as levels of memory.
#pragma once

#include <vector>

#include "models/base/quantity.h"

namespace plimsoll::planner::deepspeed {

struct Level {
  Bytes bytes;
  std::vector<Bytes> parameters;  // each is a block of its own
};

// `layers` around the loss: those that are there before it, beside the head, and after it; `more`
// are the others before and after.
struct Levels {
  Level stays;  // for as long as a micro-batch takes
  Level forward, head, layers, more;
  Level head_backward;  // in the place of `head`
  Level end;  // behind the layers' backward
  bool layers_stay = true;  // behind the loss
};

}  // namespace plimsoll::planner::deepspeed
