// --precision, and the dtypes beside it.
#pragma once

#include "models/run_spec.h"
#include "tools/cli/options.h"

namespace plimsoll::tools {

// Stack and data parallelism are there already.
void set_precision(const Options& options, models::Strategy& strategy);

}  // namespace plimsoll::tools
