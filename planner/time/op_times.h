// What each op of forward and backward asks of the GPU: the rows that a step's compute time is the
// sum of.
#pragma once

#include <string>
#include <vector>

#include "planner/plan.h"

namespace plimsoll::planner {

// The ops of one name and phase, of all layers and micro-batches of a step together.
struct OpTime {
  std::string op, phase;  // "layers.*.mlp.up_proj"
  double times = 0;
  double flops = 0;  // of GEMMs and attention
  double bytes = 0;  // that kernels beside those move
  double kernels = 0;  // beside those
  double seconds = 0;  // of the GPU; the host's launches run beside it
};

// The longest first. Nothing where the GPU is not known. Error{unsupported}, {bad_input}: as
// plan().
std::vector<OpTime> op_times(const Question& question);

}  // namespace plimsoll::planner
