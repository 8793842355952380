// installed_texts FOLDER: the completions and the manual page that are installed.
#include <fstream>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "tools/cli/completion.h"
#include "tools/cli/doors.h"

int main(int count, char** words) {
  using namespace plimsoll;
  if (count != 2) return 2;
  tools::CompletionNames names;
  for (const std::string_view name : models::catalog_names()) names.models.emplace_back(name);
  for (const models::Gpu& gpu : models::all_gpus()) names.gpus.push_back(gpu.name);
  const std::string folder = std::string(words[1]) + "/";
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream out(folder + name, std::ios::binary);
    return static_cast<bool>(out << text << std::flush);
  };
  const bool done = write("plimsoll", tools::bash_completion(names)) &&
                    write("_plimsoll", tools::zsh_completion(names)) &&
                    write("plimsoll.fish", tools::fish_completion(names)) &&
                    write("plimsoll.1", tools::manual_page(tools::this_tool().version));
  return done ? 0 : 3;
}
