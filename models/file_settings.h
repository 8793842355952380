// What a user's own file says, under the names of the options that say the same.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace plimsoll::models {

struct FileSetting {
  std::string option, value;  // "zero", "3"
  std::string key;  // "zero_optimization.stage"
  bool is_default = false;  // the file is silent, and its reader takes this
  bool yields = false;  // to another file that says otherwise (bf16: false, to mixed_precision)
};

struct FileSettings {
  std::vector<FileSetting> settings;
  std::vector<std::string> notes;  // what is not looked at, and what "auto" became
  std::string model;  // that the file names; "": none
};

}  // namespace plimsoll::models
