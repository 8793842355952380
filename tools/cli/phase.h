// --phase and what goes with it.
#pragma once

#include "planner/plan.h"
#include "tools/cli/model_source.h"
#include "tools/cli/options.h"

namespace plimsoll::tools {

void set_phase(const Options& options, planner::Question& question);
// Error{unsupported}: a checkpoint whose weights are packed already is read in another way.
void refuse_packed_checkpoint(const LoadedModel& model);

}  // namespace plimsoll::tools
