#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "models/config_reader.h"
#include "models/json_reader.h"
#include "runtime/io/checkpoint.h"

#include <nlohmann/json.hpp>

namespace plimsoll::runtime::io {

namespace {

constexpr const char* kSchema = "plimsoll.checkpoint/1";
constexpr std::int64_t kMostShards = 1 << 20;

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Whole numbers of 64 bits that others might read as doubles.
std::string hex(std::uint64_t value) {
  return fmt::format("\"{:016x}\"", value);
}

std::uint64_t hex_of(const models::Config& from, const char* key) {
  const std::string text = from.text(key, "");
  const bool digits = text.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (text.size() != 16 || !digits) from.refuse(key, "16 digits of a hexadecimal number");
  return std::stoull(text, nullptr, 16);
}

std::int64_t number(const models::Config& from, const char* key) {
  if (!from.has(key)) from.refuse(key, "a whole number from 0 on");
  return from.natural(key, 0);
}

double real(const models::Config& from, const char* key) {
  if (!from.has(key)) from.refuse(key, "a number");
  const double value = from.real(key, 0);
  if (value < 0) from.refuse(key, "a number from 0 on");
  return value;
}

models::Config section(const models::Config& from, const char* key) {
  std::optional<models::Config> found = from.section(key);
  if (!found) from.refuse(key, "an object");
  return *found;
}

kernels::Extents shape_of(const models::Config& parameter) {
  constexpr std::int64_t kMostAxes = 4;
  kernels::Extents shape;
  for (const std::int64_t length : parameter.naturals("shape", kMostAxes))
    shape.axes[static_cast<std::size_t>(shape.rank++)] = length;
  (void)shape.elements();
  return shape;
}

}  // namespace

std::string checkpoint_json(const TrainingCheckpoint& c) {
  std::string text = fmt::format(
      "{{\n  \"schema\": \"{}\",\n"
      "  \"step\": {{\"all\": {}, \"taken\": {}, \"loss_scale\": {}, \"good_steps\": {}}},\n"
      "  \"options\": {{\"seed\": {}, \"lr\": {}, \"warmup\": {}, \"max_norm\": {}, "
      "\"weight_decay\": {}, \"precision\": {}, \"optimizer\": {}, \"quantize\": {}}},\n"
      "  \"data\": {{\"origin\": {}, \"tokens\": {}, \"digest\": {}, \"sequences\": {}, "
      "\"seq_len\": {}}},\n"
      "  \"shards\": [",
      kSchema, c.steps, c.taken, c.loss_scale, c.good_steps, hex(c.seed), c.learning_rate, c.warmup,
      c.max_norm, c.weight_decay, quoted(c.precision), quoted(c.optimizer), quoted(c.quantize),
      quoted(c.data), c.data_tokens, hex(c.data_digest), c.sequences, c.length);
  for (std::size_t i = 0; i < c.shards.size(); ++i)
    text += fmt::format("{}\n    {{\"bytes\": {}, \"digest\": {}}}", i > 0 ? "," : "",
                        c.shards[i].bytes, hex(c.shards[i].digest));
  text += "\n  ],\n  \"parameters\": [";
  for (std::size_t i = 0; i < c.parameters.size(); ++i) {
    const CheckpointParameter& p = c.parameters[i];
    std::string shape;
    for (int axis = 0; axis < p.shape.rank; ++axis)
      shape += (axis > 0 ? ", " : "") + std::to_string(p.shape[axis]);
    text += fmt::format("{}\n    {{\"name\": {}, \"shape\": [{}], \"trained\": {}}}",
                        i > 0 ? "," : "", quoted(p.name), shape, p.trained);
  }
  return text + "\n  ]\n}\n";
}

TrainingCheckpoint parse_checkpoint(const std::string& text, const std::string& source) {
  const models::Config document = models::Config::parse(text, source);
  if (document.text("schema", "") != kSchema) document.refuse("schema", kSchema);
  TrainingCheckpoint out;
  const models::Config step = section(document, "step");
  out.steps = number(step, "all");
  out.taken = number(step, "taken");
  out.loss_scale = real(step, "loss_scale");
  out.good_steps = number(step, "good_steps");
  const bool scales = out.loss_scale > 0 &&
                      out.loss_scale <= static_cast<double>(std::numeric_limits<float>::max());
  if (!scales) step.refuse("loss_scale", "a number above 0 that fp32 holds");
  if (out.taken > out.steps) step.refuse("taken", "at most as many as all");
  const models::Config options = section(document, "options");
  out.seed = hex_of(options, "seed");
  out.learning_rate = real(options, "lr");
  out.warmup = number(options, "warmup");
  out.max_norm = real(options, "max_norm");
  out.weight_decay = real(options, "weight_decay");
  out.precision = options.text("precision", "");
  out.optimizer = options.text("optimizer", "");
  out.quantize = options.text("quantize", "none");
  const models::Config data = section(document, "data");
  out.data = data.text("origin", "");
  out.data_tokens = number(data, "tokens");
  out.data_digest = hex_of(data, "digest");
  out.sequences = number(data, "sequences");
  out.length = number(data, "seq_len");
  for (const models::Config& shard : document.sections("shards"))
    out.shards.push_back({number(shard, "bytes"), hex_of(shard, "digest")});
  const bool few = !out.shards.empty() && std::ssize(out.shards) <= kMostShards;
  if (!few) document.refuse("shards", "a list of 1 to 1048576");
  for (const models::Config& parameter : document.sections("parameters"))
    out.parameters.push_back(
        {parameter.text("name", ""), shape_of(parameter), parameter.flag("trained", true)});
  return out;
}

}  // namespace plimsoll::runtime::io
