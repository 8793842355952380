#include "tools/cli/targets.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "models/base/error.h"
#include "tools/cli/output.h"
#include "tools/run/run_options.h"

namespace plimsoll::tools {

namespace fs = std::filesystem;

namespace {
constexpr std::array kTargets{"json", "html", "svg", "trace", "memory-viz", "prediction", "junit"};
constexpr std::array kSources{
    "data",          "weights", "resume", "adapter", "deepspeed",    "accelerate", "peft",
    "training-args", "against", "fleet",  "axolotl", "llamafactory", "swift",      "torchtitan"};

struct Identity {
  dev_t device;
  ino_t inode;
  bool operator==(const Identity&) const = default;
};

// Of a regular file, through links; "-": of standard input.
std::optional<Identity> identity(const std::string& path) {
  struct stat status {};
  const int result = path == "-" ? ::fstat(STDIN_FILENO, &status) : ::stat(path.c_str(), &status);
  if (result != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return Identity{status.st_dev, status.st_ino};
}

// What may be read, and under which name the user gave it. Of a folder all that is in it.
std::vector<std::pair<std::string, std::string>> sources(const CommandLine& line) {
  std::vector<std::string> named = line.arguments;
  if (named.empty() && !line.argument.empty()) named.push_back(line.argument);
  for (const char* option : kSources)
    if (const std::string* value = line.options.find(option)) {
      if (std::string_view(option) != "adapter")
        named.push_back(*value);
      else
        std::ranges::copy(adapter_folders(*value), std::back_inserter(named));
    }
  std::vector<std::pair<std::string, std::string>> files;
  for (const std::string& name : named) {
    std::error_code error;
    if (!fs::is_directory(name, error)) {
      files.emplace_back(name, name);
      continue;
    }
    for (const auto& entry : fs::directory_iterator(name, error))
      files.emplace_back(entry.path().string(), name);
  }
  return files;
}

// The same file, or one that is to be and will have the same name.
bool is_same(const std::string& a, const std::string& b) {
  if (const auto one = identity(a), other = identity(b); one && other) return *one == *other;
  std::error_code error;
  const auto whole = [&](const std::string& path) {
    return fs::weakly_canonical(fs::absolute(path, error), error);
  };
  return a != "-" && b != "-" && !fs::exists(a, error) && whole(a) == whole(b);
}
}  // namespace

void check_targets(const CommandLine& line) {
  for (const char* option : {"save-weights", "save-merged", "save-packed"}) {
    const std::string* folder = line.options.find(option);
    if (folder == nullptr) continue;
    for (const char* name : {"model.safetensors", "adapter_model.safetensors", "config.json"})
      for (const auto& [file, source] : sources(line))
        if (const auto a = identity(*folder + "/" + name), b = identity(file); a && b)
          check(*a != *b, ErrorKind::bad_input, [&, source = source] {
            return fmt::format(
                "--{} {}: its {} is an input of this command ({}); give another folder", option,
                *folder, name, source);
          });
  }
  std::vector<std::pair<std::string, std::string>> seen;
  for (const char* option : kTargets) {
    const std::string* target = line.options.find(option);
    if (target == nullptr || *target == "-") continue;
    for (const auto& [file, name] : sources(line))
      if (const auto a = identity(*target), b = identity(file); a && b)
        check(*a != *b, ErrorKind::bad_input, [&, name = name] {
          return fmt::format("--{} {}: is an input of this command ({}); give another file", option,
                             *target, name == "-" ? "standard input" : name);
        });
    for (const auto& [other, path] : seen)
      check(!is_same(path, *target), ErrorKind::bad_input, [&, other = other] {
        return fmt::format("--{} {}: is the file of --{} too; give another one", option, *target,
                           other);
      });
    seen.emplace_back(option, *target);
  }
}

void check_writable(const Options& options) {
  const std::string* json = options.find("json");
  std::error_code error;
  if (json == nullptr || *json == "-" ||
      (fs::exists(*json, error) && !identity(*json) && !fs::is_directory(*json, error)))
    return;
  const AtomicFile unwritten(*json);
}

}  // namespace plimsoll::tools
