// --torch-version, --transformers-version and --bitsandbytes-version.
#pragma once

#include "models/run_spec.h"
#include "tools/cli/options.h"

namespace plimsoll::tools {

// Error{bad_input}, {unsupported}: no release, or none that is modelled with the strategy's stack.
void set_releases(const Options& options, models::Strategy& strategy);

// Error{bad_input}: a release of what the strategy does not run.
void refuse_unused_release(const Options& options, const models::Strategy& strategy);

}  // namespace plimsoll::tools
