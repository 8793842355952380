// The config.yaml of `accelerate launch`, as accelerate 1.15 reads it
// (commands/config/config_args.py, commands/launch.py, utils/launch.py).
#pragma once

#include <string>
#include <string_view>

#include "models/file_settings.h"

namespace plimsoll::models {

// YAML or JSON. A deepspeed_config_file becomes --deepspeed. Error{bad_input}: keys that Accelerate
// refuses, too, wrong types, sections that contradict each other; Error{unsupported}: ways of
// running that are not planned (TPU, Megatron-LM, fp8, torch.compile, offloading, …).
FileSettings read_accelerate_config(std::string_view text, const std::string& source);

}  // namespace plimsoll::models
