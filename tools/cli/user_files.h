// --peft, --accelerate, --training-args, --axolotl, --llamafactory, --swift and --torchtitan: what
// those files say, as if it had been said with options. --trainer: what another program takes by
// default (models/trainers.h).
#pragma once

#include <string>

#include "tools/cli/deepspeed_file.h"
#include "tools/cli/model_source.h"
#include "tools/cli/options.h"

namespace plimsoll::tools {

// What becomes of settings that a file leaves to its reader's defaults: a plan has them, a search
// looks for them.
enum class FileDefaults : std::uint8_t { filled, left_open };

bool has_user_files(const Options& given);

// `options`: the given ones and the files', without those (--deepspeed stays, and may come
// from one of them); `model`: MODEL, or what a file names. Error{bad_input} where an option that
// was given and a file, or two files, contradict each other, with both values.
FileOptions with_user_files(const std::string& model, const Options& given, FileDefaults defaults,
                            ModelSource& models);

// The same error, with the file and its key before an option that a file set.
[[noreturn]] void fail_with_origin(const Error& error, const Options& options);

}  // namespace plimsoll::tools
