// The quantization_config of a model's own config.json: how its checkpoint is packed.
#pragma once

#include "models/config_reader.h"
#include "models/run_spec.h"
#include "tools/cli/request.h"

namespace plimsoll::tools {

// Where adapters are asked for and --quantize is not given, a storage that is planned becomes the
// base's, and a note says so. Error{unsupported}: it is one of these, with a setting that is not
// planned.
void apply_quantization_config(const Options& options, Request& request);

// What bitsandbytes packed with this quantization_config, and `out` in what; "": nothing.
// Error{unsupported}: with a setting that is not planned.
std::string bitsandbytes_storage(const models::Config& config, models::Quantization& out);

}  // namespace plimsoll::tools
