// A ds_config.json, as DeepSpeed 0.19.8 reads it and as Accelerate and Transformers fill in "auto".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "models/file_settings.h"

namespace plimsoll::models {

// `hidden`: the model's hidden_size, which "auto" sizes come from. Sections and keys that no
// DeepSpeed knows are Error{bad_input} with the nearest name where DeepSpeed refuses them or where
// they look like a slip, else a note; features whose memory is not planned are Error{unsupported}.
FileSettings read_deepspeed_config(std::string_view text, const std::string& source,
                                   std::optional<std::int64_t> hidden);

}  // namespace plimsoll::models
