// TrainingArguments (transformers 5.17, training_args.py) as JSON or YAML, and what scripts of
// Transformers, TRL and their likes take beside them (model_name_or_path, max_length, lora_r, …).
#pragma once

#include <string>
#include <string_view>

#include "models/file_settings.h"

namespace plimsoll::models {

// Settings of fields that the text does not have are marked as defaults: Transformers' own.
// Error{bad_input}: wrong types, contradictions, a name that looks like a slip; Error{unsupported}:
// what is not planned. Other unknown names are listed in a note: scripts have many of their own.
FileSettings read_training_arguments(std::string_view text, const std::string& source);

}  // namespace plimsoll::models
