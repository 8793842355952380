// Our own runtime behind the planner's door: what is refused, the step, its collectives.
#pragma once

#include "planner/stack_step.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner::own {

extern const StackInfo kStack;

// Throws Error{unsupported} or Error{bad_input} naming the option that this stack does not take.
void write_step(const Question& question, const ModelParts& parts, StackStep& step);

}  // namespace plimsoll::planner::own
