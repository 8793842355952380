// What is trained, and how the rest is stored: --lora-*, --freeze, --train, --quantize and its kin.
#pragma once

#include "models/run_spec.h"
#include "tools/cli/options.h"

namespace plimsoll::tools {

// Behind precision. Throws Error{bad_input, unsupported}.
void set_adapters(const Options& options, models::Strategy& strategy);

}  // namespace plimsoll::tools
