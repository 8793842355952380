#pragma once

#include <cstdint>
#include <string>

namespace plimsoll::tools {

// A Hugging Face configuration with its number of layers changed to `layers`, and lists that have
// an entry for each layer cut to it. As it was where it says nothing of layers.
std::string config_with_layers(const std::string& config, std::int64_t layers);

}  // namespace plimsoll::tools
