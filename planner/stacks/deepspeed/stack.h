// Stack deepspeed behind the planner's door: what is refused, the step, its collectives.
#pragma once

#include "planner/stack_step.h"
#include "planner/stacks/pytorch/step_writer.h"

namespace plimsoll::planner::deepspeed {

void write_step(const Question& question, const ModelParts& parts, StackStep& step);

// The same for given rules (the measured training loop's) and rank; -1: the fullest one.
void write_step(const Question& question, const ModelParts& parts, const pytorch::Rules& rules,
                std::int64_t rank, StackStep& step);

}  // namespace plimsoll::planner::deepspeed
