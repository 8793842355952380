// Which modules a LoraConfig adapts, where a list of names does not say it: a regular expression,
// layers_to_transform, exclude_modules.
#pragma once

#include <string>
#include <vector>

#include "models/config_reader.h"
#include "models/model_spec.h"

namespace plimsoll::models {

// As values of --lora-targets: names that fit all that was chosen and nothing else, the shortest
// first ("q_proj", "self_attn.q_proj", "model.layers.3.self_attn.q_proj"). Error{bad_input}: a
// pattern that is none, too long, fits nothing, or fits a module that PEFT cannot adapt.
std::vector<std::string> peft_targets(const Config& file, const ModelSpec& model);

}  // namespace plimsoll::models
