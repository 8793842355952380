// What is not planned of a load.
#pragma once

#include "planner/plan.h"

namespace plimsoll::planner::loading {

// Throws Error{unsupported} or Error{bad_input}, with what was given and what is planned.
void refuse_load(const Question& question);

}  // namespace plimsoll::planner::loading
