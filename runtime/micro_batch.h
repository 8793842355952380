// What one forward and backward is given.
#pragma once

#include "runtime/modules/head.h"
#include "runtime/optimizer.h"

namespace plimsoll::runtime {

struct MicroBatch {
  ConstTensorView ids, targets;  // int32 [T]
  std::int64_t index = 0, count = 1;  // in this step
  LossFactors factors;
  // --optimizer-in-backward: taken of each unit when its backward is done.
  const OptimizerStep* step = nullptr;
};

}  // namespace plimsoll::runtime
