// --deepspeed FILE: what the file says, as if it had been said with options.
#pragma once

#include <string>
#include <vector>

#include "models/file_settings.h"
#include "tools/cli/model_source.h"
#include "tools/cli/options.h"

namespace plimsoll::tools {

struct FileOptions {
  Options options;  // the given ones and the file's, without --deepspeed itself
  std::vector<std::string> set;  // by the file: names of options
  std::vector<std::string> notes;
  std::string model;  // MODEL, or what a file names
};

// Error{bad_input} where an option that was given and the file contradict each other, with both
// values. `model` may be null (--params); then no size may be "auto".
FileOptions with_deepspeed_file(const Options& given, const LoadedModel* model);
// "5e8" and "500000000" are the same value.
bool is_same_value(const std::string& a, const std::string& b);

// The same for a search: sizes of a batch that the file leaves "auto" are not derived.
FileOptions with_open_deepspeed_file(const Options& given, const LoadedModel* model);

// What --deepspeed names: a file, or as Transformers takes it, the object itself.
models::FileSettings read_deepspeed_option(const std::string& value, const LoadedModel* model);

}  // namespace plimsoll::tools
