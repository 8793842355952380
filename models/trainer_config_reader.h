// Configurations of training programs around Transformers' Trainer, and of torchtitan, as options.
//
// What a file does not say, its program's defaults do (models/trainers.h), marked as defaults.
// Error{bad_input}: wrong types, contradictions, names that look like slips; Error{unsupported}:
// what is not planned. Names that the program does not have are listed in a note.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "models/file_settings.h"

namespace plimsoll::models {

// The YAML of `axolotl train` (Axolotl 0.19, utils/schemas).
FileSettings read_axolotl_config(std::string_view text, const std::string& source);

// The YAML or JSON of `llamafactory-cli train` (LLaMA-Factory 0.9.5, hparams). Stages pt and sft.
FileSettings read_llamafactory_config(std::string_view text, const std::string& source);

// The arguments of `swift sft` and `swift pt` as YAML or JSON (ms-swift 4.6, arguments). `ranks`:
// of all nodes, which its accumulation and checkpoints depend on.
FileSettings read_swift_arguments(std::string_view text, const std::string& source,
                                  std::int64_t ranks);

// The TOML of torchtitan 0.2.2 (config/job_config.py), the last release that has one; or the same
// as JSON.
FileSettings read_torchtitan_config(std::string_view text, const std::string& source);

}  // namespace plimsoll::models
