#include "tools/run/run_options.h"

#include <filesystem>
#include <limits>
#include <sstream>

#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace {
constexpr double kMost = 1e9;
}  // namespace

RunOptions run_options_from(const Options& given) {
  RunOptions run;
  const auto text = [&](std::string_view option, std::string& target) {
    if (const std::string* value = given.find(option)) target = *value;
  };
  if (const std::string* value = given.find("steps"))
    run.steps = whole("steps", *value, 1, 1 << 30);
  if (const std::string* value = given.find("seed"))
    run.seed = static_cast<std::uint64_t>(
        whole("seed", *value, 0, std::numeric_limits<std::int64_t>::max()));
  if (const std::string* value = given.find("warmup"))
    run.warmup = whole("warmup", *value, 0, 1 << 30);
  const auto real = [&](std::string_view option, double& target) {
    if (const std::string* value = given.find(option))
      target = real_value(option, *value, 0, kMost);
  };
  real("seconds", run.seconds);
  run.profile = given.has("profile");
  real("lr", run.learning_rate);
  real("max-norm", run.max_norm);
  real("weight-decay", run.weight_decay);
  text("weights", run.weights);
  if (const std::string* value = given.find("adapter")) run.adapters = adapter_folders(*value);
  text("data", run.data);
  text("save-weights", run.save_weights);
  text("save-merged", run.save_merged);
  text("save-packed", run.save_packed);
  text("save-checkpoint", run.save_checkpoint);
  text("resume", run.resume);
  if (const std::string* value = given.find("save-every"))
    run.save_every = whole("save-every", *value, 1, 1 << 30);
  for (const auto& [name, value] : given.given()) run.given.emplace(name);
  run.poison = given.has("poison");
  if (const std::string* value = given.find("timeout"))
    run.timeout_seconds = real_value("timeout", *value, 0.001, kMost);
  if (const std::string* value = given.find("device"))
    run.device = choice<models::Device>("device", *value);
  if (const std::string* value = given.find("ranks"))
    run.ranks = whole("ranks", *value, 1, 1 << 16);
  if (const std::string* value = given.find("gpu-memory"))
    run.memory = size_value("gpu-memory", *value);
  run.quiet = given.has("quiet");
  return run;
}

std::vector<std::string> adapter_folders(const std::string& value) {
  std::error_code error;
  if (std::filesystem::exists(value, error)) return {value};
  std::vector<std::string> folders;
  std::istringstream text(value);
  for (std::string folder; std::getline(text, folder, ',');) {
    check(!folder.empty(), ErrorKind::bad_input,
          [&] { return "--adapter " + value + ": a folder without a name"; });
    folders.push_back(folder);
  }
  return folders;
}

}  // namespace plimsoll::tools
