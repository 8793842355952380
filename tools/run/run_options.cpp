#include "tools/run/run_options.h"

#include <limits>

#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace {
constexpr Option kTrainingOptions[] = {
    {"steps", "N", "Run", "optimizer steps (3)"},
    {"seed", "N", "Run", "of weights, dropout and rounding (42)"},
    {"lr", "X", "Run", "learning rate (1e-4)"},
    {"warmup", "N", "Run", "steps over which the learning rate grows from 0 (100)"},
    {"weights", "FOLDER", "Run", "safetensors to start from (drawn by the seed)"},
    {"adapter", "FOLDER", "Run", "PEFT's adapter to start from (drawn by the seed)"},
    {"data", "FILE", "Run", "a text, a .bin of token ids, or synthetic (the shipped text)"},
    {"save-weights", "FOLDER", "Run", "write the trained weights as safetensors"},
    {"poison", "", "Run", "fill memory with NaN at its birth and death"},
    {"timeout", "SECONDS", "Run", "a rank that keeps others waiting longer ends the job (600)"},
};
constexpr double kMost = 1e9;
}  // namespace

std::span<const Option> training_options() {
  return kTrainingOptions;
}

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
  if (const std::string* value = given.find("lr"))
    run.learning_rate = real_value("lr", *value, 0, kMost);
  if (const std::string* value = given.find("warmup"))
    run.warmup = whole("warmup", *value, 0, 1 << 30);
  text("weights", run.weights);
  text("adapter", run.adapter);
  text("data", run.data);
  text("save-weights", run.save_weights);
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

}  // namespace plimsoll::tools
