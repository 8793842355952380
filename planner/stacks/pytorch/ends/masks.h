// What masks of attention have in common.
#pragma once

#include "planner/kernels_of_op.h"
#include "planner/stacks/pytorch/modules.h"

namespace plimsoll::planner::pytorch {

// find_packed_sequence_indices (transformers masking_utils.py): each sequence's first position - 1,
// in front of the positions; their differences; where those are not 1, and its running sum.
// Returns the sum.
std::int32_t number_samples(KernelsOfOp& kernels, const ModuleWriter& of, Tokens tokens);

}  // namespace plimsoll::planner::pytorch
