#include "tools/cli/deepspeed_file.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "models/base/error.h"
#include "models/config_reader.h"
#include "models/deepspeed_config_reader.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace {

constexpr std::int64_t kMostBytes = 16 << 20;

std::optional<std::int64_t> hidden_size(const LoadedModel* model) {
  if (model == nullptr) return std::nullopt;
  if (model->spec.decoder) return model->spec.decoder->hidden;
  const models::Config config = models::Config::parse(model->config, model->spec.name);
  const std::int64_t hidden = config.optional_count({"hidden_size", "n_embd", "d_model"}, 0);
  return hidden > 0 ? std::optional(hidden) : std::nullopt;
}

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// An object instead of a file is not shown whole.
std::string shown(const std::string& path) {
  return path.starts_with('{') ? "--deepspeed" : path;
}

// DeepSpeed derives what is missing of three sizes; the micro-batch is what our options lack.
void derive_micro_batch(FileOptions& out, const std::string& path) {
  Options& options = out.options;
  const std::string* global = options.find("global-batch");
  if (global == nullptr || options.has("micro-batch")) return;
  const auto value = [&](const char* option) {
    const std::string* text = options.find(option);
    return text == nullptr ? 1 : whole(option, *text, 1, std::int64_t{1} << 40);
  };
  const std::int64_t once = checked_multiply(value("gpus"), value("grad-accum"));
  const std::int64_t all = value("global-batch");
  check(all % once == 0, ErrorKind::bad_input, [&] {
    return fmt::format(
        "{}: train_batch_size {} is no multiple of {} (--gpus x "
        "gradient_accumulation_steps)",
        shown(path), all, once);
  });
  options.add("micro-batch", std::to_string(all / once));
}

}  // namespace

bool is_same_value(const std::string& a, const std::string& b) {
  const auto first = number(a), second = number(b);
  return a == b || (first && second && *first == *second);
}

models::FileSettings read_deepspeed_option(const std::string& value, const LoadedModel* model) {
  if (value.starts_with('{'))
    return models::read_deepspeed_config(value, "--deepspeed", hidden_size(model));
  return models::read_deepspeed_config(models::read_text_file(value, kMostBytes), value,
                                       hidden_size(model));
}

FileOptions with_open_deepspeed_file(const Options& given, const LoadedModel* model) {
  const std::string path = *given.find("deepspeed");
  const models::FileSettings file = read_deepspeed_option(path, model);
  FileOptions out{{}, {}, file.notes, {}};
  for (const auto& [name, value] : given.given())
    if (name != "deepspeed") out.options.add(name, value, given.origin(name));
  std::string stage = given.has("zero") ? *given.find("zero") : "0";
  for (const models::FileSetting& setting : file.settings) {
    const std::string* mine = given.find(setting.option);
    if (mine != nullptr && !is_same_value(*mine, setting.value))
      fail(ErrorKind::bad_input,
           fmt::format("{}, but {} says {} ({}): give one of the two", given.said(setting.option),
                       shown(path), setting.value, setting.key));
    if (setting.option == "zero") stage = setting.value;
    // A file whose stage is "auto" has sizes for a stage that was not chosen.
    const bool stage3_only =
        setting.option.starts_with("stage3-") || setting.option == "sub-group-size";
    const bool flat = stage == "1" || stage == "2";
    const bool of_buckets =
        setting.option == "overlap-comm" || setting.option == "reduce-bucket-size";
    const bool without_effect = (stage3_only && stage != "3") || (of_buckets && stage == "0") ||
                                (setting.option == "round-robin-gradients" && !flat);
    if (mine == nullptr && !without_effect) out.options.add(setting.option, setting.value);
    out.set.push_back(setting.option);
  }
  return out;
}

FileOptions with_deepspeed_file(const Options& given, const LoadedModel* model) {
  FileOptions out = with_open_deepspeed_file(given, model);
  derive_micro_batch(out, *given.find("deepspeed"));
  return out;
}

}  // namespace plimsoll::tools
