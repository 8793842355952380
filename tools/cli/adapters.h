// What is trained, and how the rest is stored: --adapter, --lora-*, --freeze, --train, --quantize
// and its kin.
#pragma once

#include "models/model_spec.h"
#include "models/run_spec.h"
#include "tools/cli/options.h"

namespace plimsoll::tools {

// Behind precision. Throws Error{bad_input, unsupported}.
void set_adapters(const Options& options, models::Strategy& strategy);

// Where nobody names them, by the model.
void set_default_targets(const Options& options, const models::ModelSpec& model,
                         models::Strategy& strategy);

}  // namespace plimsoll::tools
