// Stack deepspeed behind the planner's door: what is refused, the step, its messages.
#pragma once

#include "planner/stack_step.h"
#include "planner/stacks/pytorch/rules.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner::deepspeed {

extern const StackInfo kStack;

void write_step(const Question& question, const ModelParts& parts, StackStep& step);
void write_messages(const ModelParts& parts, const models::Strategy& strategy, Messages& out);
void write_optimizer(const ModelParts& parts, const models::Strategy& strategy,
                     models::StepProgram& program, Works& works);

// The same for given rules (the measured training loop's).
void write_step(const Question& question, const ModelParts& parts, const pytorch::Rules& rules,
                StackStep& step);

}  // namespace plimsoll::planner::deepspeed
