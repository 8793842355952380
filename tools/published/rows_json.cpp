#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "models/base/error.h"
#include "models/base/utf8.h"
#include "tools/published/rows.h"

namespace plimsoll::tools {

namespace {
using Json = nlohmann::json;

// A row's key and the option of `fit` that says it; `usual` is what needs no option.
struct Key {
  const char *key, *option;
  const char* usual = nullptr;
};

constexpr Key kKeys[] = {{"gpu", "gpu"},
                         {"gpus", "gpus", "1"},
                         {"stack", "stack", "pytorch"},
                         {"zero", "zero", "0"},
                         {"fsdp_version", "fsdp-version", "2"},
                         {"shard_group", "shard-group", "0"},
                         {"precision", "precision", "bf16-mixed"},
                         {"fp8_recipe", "fp8-recipe"},
                         {"fp8_all_gather", "fp8-all-gather"},
                         {"param_dtype", "param-dtype"},
                         {"reduce_dtype", "grad-dtype"},
                         {"optimizer", "optimizer", "adamw"},
                         {"optimizer_impl", "optimizer-impl"},
                         {"recompute", "recompute", "none"},
                         {"reentrant", "use-reentrant", "no"},
                         {"attention", "attention", "flash"},
                         {"loss", "loss", "full"},
                         {"kernels", "kernels", "eager"},
                         {"compile", "compile", "no"},
                         {"lora_rank", "lora-rank"},
                         {"lora_dropout", "lora-dropout"},
                         {"lora_targets", "lora-targets"},
                         {"adapter_dtype", "adapter-dtype", "fp32"},
                         {"quantize", "quantize"},
                         {"quant_storage", "quant-storage"},
                         {"kbit_prep", "kbit-prep"},
                         {"transformers", "transformers-version"},
                         {"seq_len", "seq-len", "4096"},
                         {"micro_batch", "micro-batch", "1"},
                         {"grad_accum", "grad-accum", "1"}};

// What a row says beside its question.
constexpr const char* kOthers[] = {"id",
                                   "source",
                                   "model",
                                   "config",
                                   "ran_kernels",
                                   "in_sample",
                                   "upper_bound",
                                   "out_of_memory",
                                   "peak_bytes",
                                   "resident_bytes",
                                   "reserved_bytes",
                                   "device_MiB",
                                   "tokens_per_second_per_gpu"};

std::string text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (!value.is_array()) return value.dump();
  std::string out;
  for (const Json& one : value) out += (out.empty() ? "" : ",") + one.get<std::string>();
  return out;
}

// Keys that say nothing to `fit` beside others of the row.
bool is_said(const Json& row, const std::string& key) {
  if (key == "fsdp_version") return row.value("zero", 0) >= 2;
  // Liger brings its own loss, whatever Transformers it is used with.
  if (key == "transformers")
    return row.value("loss", "full") == "full" || row.value("kernels", "eager") == "fused";
  return true;
}

void add(Options& options, const Key& key, const std::string& text) {
  if (key.usual != nullptr && text == key.usual) return;
  const Option* option = find_plan_option(key.option);
  // "compile": true: of the whole model, as Transformers' torch_compile is.
  const bool whole = text == "yes" && std::string_view(key.option) == "compile";
  options.add(key.option, option->value.empty() ? "" : whole ? "model" : text);
}

// With adapters of the published runs, what their sources state once for all of them.
Json completed(Json row) {
  if (!row.contains("lora_rank")) return row;
  if (!row.contains("lora_dropout")) row["lora_dropout"] = 0.1;
  if (!row.contains("lora_targets")) row["lora_targets"] = "attention";
  return row;
}

Options options_of(const Json& row) {
  Options options;
  for (const Key& key : kKeys)
    if (row.contains(key.key) && is_said(row, key.key)) add(options, key, text_of(row[key.key]));
  for (const auto& [name, value] : row.items()) {
    if (std::ranges::find(kOthers, name, [](const char* o) { return std::string(o); }) !=
            std::end(kOthers) ||
        std::ranges::find(kKeys, name, [](const Key& k) { return std::string(k.key); }) !=
            std::end(kKeys))
      continue;
    std::string option = name;
    std::ranges::replace(option, '_', '-');
    check(find_plan_option(option) != nullptr, ErrorKind::bad_input,
          [&] { return fmt::format("\"{}\": neither a figure nor an option of fit", name); });
    add(options, {name.c_str(), option.c_str()}, text_of(value));
  }
  return options;
}

// Whole, not negative, and below 2^53: what every reader of JSON has exactly.
std::int64_t whole(const Json& value, const std::string& what) {
  const double number = value.is_number() ? value.get<double>() : -1;
  check(number >= 0 && number <= 0x1p53 && number == std::floor(number), ErrorKind::bad_input, [&] {
    return what + ": " + shortened(value.dump()) + " is not a whole number from 0 to 2^53";
  });
  return value.get<std::int64_t>();
}

// How many rows a document does not ask, by the reason.
std::map<std::string, std::int64_t> counts_of(const Json& reasons, const char* key) {
  check(reasons.is_object(), ErrorKind::bad_input,
        [&] { return key + std::string(": no object"); });
  std::map<std::string, std::int64_t> counts;
  for (const auto& [why, count] : reasons.items()) counts[why] = whole(count, key);
  return counts;
}

PublishedRow row_of(const Json& json, const PublishedDocument& document) {
  const Json row = completed(json);
  PublishedRow out;
  out.id = row.at("id");
  out.model = row.at("model");
  out.gpu = row.at("gpu");
  out.source = static_cast<std::size_t>(whole(row.at("source"), "source"));
  check(out.source < document.sources.size(), ErrorKind::bad_input,
        out.id + ": \"source\": there is none");
  out.stand_in = document.stand_ins.contains(out.source);
  if (row.contains("config")) out.config = row["config"].dump();
  out.options = options_of(row);
  out.ran_kernels = row.value("ran_kernels", "");
  out.transformers = row.value("transformers", "");
  out.in_sample = row.value("in_sample", false);
  out.upper_bound = row.value("upper_bound", false);
  out.out_of_memory = row.value("out_of_memory", false);
  const auto bytes = [&](const char* key, std::optional<Bytes>& target) {
    if (row.contains(key)) target = Bytes(whole(row[key], key));
  };
  bytes("peak_bytes", out.peak);
  bytes("resident_bytes", out.resident);
  bytes("reserved_bytes", out.reserved);
  if (row.contains("device_MiB")) {
    const double mib = row["device_MiB"].get<double>();
    check(mib >= 0 && mib <= 0x1p32, ErrorKind::bad_input, "device_MiB: not from 0 to 2^32");
    out.device = Bytes(std::llround(mib * (1 << 20)));
  }
  if (row.contains("tokens_per_second_per_gpu"))
    out.speed = row["tokens_per_second_per_gpu"].get<double>();
  return out;
}

PublishedRow end_of(const Json& end, const PublishedDocument& document) {
  if (end.is_object()) return row_of(end, document);
  for (const PublishedRow& row : document.rows)
    if (row.id == end.get<std::string>()) return row;
  fail(ErrorKind::bad_input, "no row " + end.get<std::string>());
}
// A source's place in the list, as a key.
std::size_t source_number(const std::string& key) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), number);
  check(error == std::errc() && end == key.data() + key.size(), ErrorKind::bad_input,
        [&] { return "stand_ins: '" + shortened(key) + "' is no number of a source"; });
  return number;
}

}  // namespace

PublishedDocument read_published(std::string_view text, const std::string& name) {
  PublishedDocument document;
  document.name = name;
  try {
    const Json json = Json::parse(text);
    document.sources = json.at("sources");
    document.left_out = counts_of(json.at("left_out"), "left_out");
    document.apart = counts_of(json.value("apart", Json::object()), "apart");
    const Json stand_ins = json.value("stand_ins", Json::object()),
               scaling = json.value("scaling", Json::array());
    for (const auto& [source, why] : stand_ins.items())
      document.stand_ins[source_number(source)] = why;
    for (const Json& row : json.at("rows")) document.rows.push_back(row_of(row, document));
    for (const Json& pair : scaling)
      document.scaling.push_back(
          {pair.at("what"), end_of(pair.at("from"), document), end_of(pair.at("to"), document)});
  } catch (const Json::exception& error) {
    fail(ErrorKind::bad_input,
         fmt::format("{}: no document of published figures ({})", name, error.what()));
  } catch (const Error& error) {
    fail(error.kind(), name + ": " + error.message());
  }
  return document;
}

}  // namespace plimsoll::tools
