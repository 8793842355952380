// Our own runtime behind the planner's door: what is refused, the step, its messages.
#pragma once

#include "planner/stack_step.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner::plimsoll_stack {

extern const StackInfo kStack;

// Throws Error{unsupported} or Error{bad_input} naming the option that this stack does not take.
void write_step(const Question& question, const ModelParts& parts, StackStep& step);
void write_messages(const ModelParts& parts, const models::Strategy& strategy, Messages& out);

}  // namespace plimsoll::planner::plimsoll_stack
