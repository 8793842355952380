// --phase and what goes with it.
#pragma once

#include "planner/plan.h"
#include "tools/cli/options.h"

namespace plimsoll::tools {

void set_phase(const Options& options, planner::Question& question);

}  // namespace plimsoll::tools
