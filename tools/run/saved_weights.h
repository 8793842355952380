// Trained weights as files.
#pragma once

#include <string>

#include "runtime/model.h"

namespace plimsoll::tools {

// Writes model.safetensors and config.json into `folder`, which is made; of a model with adapters
// adapter_model.safetensors alone. Masters in fp32 where there are some, else the weights as they
// are computed with. All ranks call it; `writes` on one of them. Error{bad_input}: cannot be
// written.
void save_weights(const std::string& folder, const std::string& config, runtime::Model& model,
                  DType compute, bool writes);

}  // namespace plimsoll::tools
