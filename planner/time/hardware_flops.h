// FLOPs that the GPUs execute in a step, read from the program of its stack: GEMMs and attention of
// forward and backward with all that is computed again. The optimizer's are not among them.
//
// Model FLOPs are not read from it (models/step_flops.h says why).
#pragma once

#include "planner/model_parts.h"
#include "planner/plan.h"

namespace plimsoll::planner {

// Of the whole job, one optimizer step. Error{unsupported}, {bad_input}: the stack refuses it.
double hardware_flops(const Question& question, const ModelParts& parts);

}  // namespace plimsoll::planner
