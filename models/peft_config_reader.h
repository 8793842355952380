// An adapter_config.json, as PEFT 0.21 reads it (peft/tuners/lora/config.py, LoraConfig).
#pragma once

#include <string>
#include <string_view>

#include "models/file_settings.h"
#include "models/model_spec.h"

namespace plimsoll::models {

// As the --lora options. `model` may be null (--params): then targets that depend on it are an
// error. Error{unsupported}: adapters whose memory is not planned (target_parameters,
// rank_pattern, …). Error{bad_input}: wrong types, a pattern that fits no module or one that PEFT
// cannot adapt, a key that looks like a slip; other unknown keys are notes, as PEFT ignores them.
FileSettings read_peft_config(std::string_view text, const std::string& source,
                              const ModelSpec* model);

// The model that its adapters are for, as it names it; "": none.
std::string peft_base_model(std::string_view text, const std::string& source);

}  // namespace plimsoll::models
