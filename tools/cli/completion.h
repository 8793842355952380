// What shells and man(1) are told of the commands and their options: written at build time from
// the tables that --help has too, and installed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::tools {

// `models`, `gpus`: the names that MODEL and --gpu take.
struct CompletionNames {
  std::vector<std::string> models, gpus;
};

std::string bash_completion(const CompletionNames& names);
std::string zsh_completion(const CompletionNames& names);
std::string fish_completion(const CompletionNames& names);

std::string manual_page(std::string_view version);  // plimsoll.1

}  // namespace plimsoll::tools
