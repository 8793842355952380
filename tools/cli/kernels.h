// --kernels, and what follows from them for one model.
#pragma once

#include "models/model_spec.h"
#include "models/run_spec.h"
#include "tools/cli/options.h"

namespace plimsoll::tools {

// Liger brings its fused loss along where it has one for the model, unless --loss says otherwise.
void set_kernels(const Options& options, const models::ModelSpec& model,
                 models::Strategy& strategy);

}  // namespace plimsoll::tools
