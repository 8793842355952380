#pragma once

#include <cstdint>
#include <string>

#include "models/model_reader.h"

namespace plimsoll::tools {

// A Hugging Face configuration with its number of layers changed to `layers`, and lists that have
// an entry for each layer cut to it. As it was where it says nothing of layers.
std::string config_with_layers(const std::string& config, std::int64_t layers);

// With `rate` at all of `keys`.
std::string config_with_dropout(const std::string& config, const models::DropoutKeys& keys,
                                double rate);

// Of this class.
std::string config_with_architecture(const std::string& config, const std::string& name);

}  // namespace plimsoll::tools
