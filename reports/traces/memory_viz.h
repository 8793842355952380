// A step as torch.cuda.memory._snapshot() would give it, for PyTorch's memory visualizer
// (https://pytorch.org/memory_viz, torch/cuda/_memory_viz.py).
#pragma once

#include <string>

#include "reports/traces/step_history.h"

namespace plimsoll::reports {

// A pickle: each tensor's allocation and release in the order of the step, its name as the stack
// frame, its category as the colour. Bytes are the step's; addresses are laid out here, for it
// has none: where a block would lie in the allocator's segments is not said.
std::string memory_snapshot(const StepHistory& step);

}  // namespace plimsoll::reports
