// --offload and what goes with it.
#pragma once

#include "models/run_spec.h"
#include "tools/cli/options.h"

namespace plimsoll::tools {

void set_offload(const Options& options, models::Strategy& strategy);

}  // namespace plimsoll::tools
