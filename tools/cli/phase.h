// --phase and what goes with it.
#pragma once

#include "planner/plan.h"
#include "tools/cli/model_source.h"
#include "tools/cli/request.h"

namespace plimsoll::tools {

void set_phase(const Options& options, planner::Question& question);
// Of --phase load: what the model's config says of its checkpoint. Error{unsupported}: it is packed
// by others than bitsandbytes, or not as the question has it.
void use_packed_checkpoint(const LoadedModel& model, planner::Question& question);

}  // namespace plimsoll::tools
