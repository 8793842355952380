// Stack pytorch behind the planner's door: what is refused, the step, its collectives.
#pragma once

#include "planner/stack_step.h"

namespace plimsoll::planner::pytorch {

void write_step(const Question& question, const ModelParts& parts, StackStep& step);

}  // namespace plimsoll::planner::pytorch
