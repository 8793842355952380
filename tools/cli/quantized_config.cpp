// Keys: transformers 5.17, utils/quantization_config.py (BitsAndBytesConfig, GPTQConfig,
// AwqConfig, TorchAoConfig); 4.55 (HqqConfig).
#include "tools/cli/quantized_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/config_reader.h"
#include "models/storages.h"

namespace plimsoll::tools {

namespace {

using models::Config;

[[noreturn]] void refuse(const Config& config, std::string_view key, std::string_view modelled) {
  fail(ErrorKind::unsupported,
       fmt::format("{}: {} is {}: {} is modelled; --quantize KIND says otherwise", config.source(),
                   key, config.shown(key), modelled));
}

bool flag(const Config& config, const char* key) {
  const std::string saved = std::string("_") + key;  // as older releases wrote it
  return config.flag(key, false) || config.flag(saved, false);
}

std::string gptq(const Config& config) {
  if (config.count("bits", 4) != 4) refuse(config, "bits", "4");
  // -1 is no natural number.
  const double group = config.real("group_size", 128);
  if (group != 128 && group != -1) refuse(config, "group_size", "128 or -1");
  return group == 128 ? "gptq" : "gptq-row";
}

// As AutoAWQ writes it; Transformers 5 writes gptqmodel's names.
std::string awq(const Config& config) {
  for (const auto& [key, planned] :
       {std::pair{"bits", 4}, {"w_bit", 4}, {"group_size", 128}, {"q_group_size", 128}})
    if (config.count(key, planned) != planned) refuse(config, key, std::to_string(planned));
  if (!config.flag("zero_point", true)) refuse(config, "zero_point", "true");
  for (const char* key : {"version", "format"}) {
    const std::string format = config.text(key, "gemm");
    if (format != "gemm" && format != "GEMM") refuse(config, key, "gemm");
  }
  constexpr const char* kSkips = "modules_to_not_convert";
  const std::vector<std::string> skips = config.texts(kSkips, 4096);
  if (std::ranges::any_of(skips, [](const std::string& name) { return name != "lm_head"; }))
    refuse(config, kSkips, "lm_head alone");
  return "awq";
}

// Configurations of torchao are objects with a type and data.
std::string torchao(const Config& config) {
  const std::optional<Config> types = config.section("quant_type");
  const std::optional<Config> type = types ? types->section("default") : std::nullopt;
  if (!type) refuse(config, "quant_type", "Int8WeightOnlyConfig");
  const std::string name = type->text("_type", "");
  if (name != "Int8WeightOnlyConfig") refuse(*type, "_type", "Int8WeightOnlyConfig");
  const std::optional<Config> data = type->section("_data");
  const std::optional<Config> rows = data ? data->section("granularity") : std::nullopt;
  if (rows && rows->text("_type", "PerRow") != "PerRow") refuse(*rows, "_type", "PerRow");
  if (config.flag("include_input_output_embeddings", false))
    refuse(config, "include_input_output_embeddings", "false");
  return "torchao-int8";
}

std::string hqq(const Config& config) {
  const std::optional<Config> all = config.section("quant_config");
  const std::optional<Config> weights = all ? all->section("weight_quant_params") : std::nullopt;
  if (!weights) refuse(config, "quant_config", "one of weight_quant_params for all layers");
  if (weights->count("nbits", 4) != 4) refuse(*weights, "nbits", "4");
  if (weights->count("group_size", 64) != 64) refuse(*weights, "group_size", "64");
  if (weights->optional_count("axis", 1) != 1) refuse(*weights, "axis", "1");
  return "hqq";
}

// A frozen base stays in the dtype that it is loaded in.
void load_in_low_dtype(models::Strategy& s) {
  if (is_mixed(s.precision) && !s.param_dtype)
    s.param_dtype = s.precision == models::Precision::bf16_mixed ? DType::bf16 : DType::fp16;
}

// In place of the note that the model's quantization_config is not applied.
void say(Request& request, std::string note) {
  auto applied = std::make_shared<LoadedModel>(*request.model);
  std::erase_if(applied->spec.notes,
                [](const std::string& text) { return text.starts_with("quantization_config"); });
  request.model = applied;
  request.question.model = &request.model->spec;
  request.notes.push_back(std::move(note));
}

// Transformers 5.17, quantizers/quantizer_mxfp4.py: is_trainable is false, and the Trainer stops
// (trainer_utils.py, validate_quantization_for_training). Unpacked, experts are bf16.
void unpack_mxfp4(Request& request) {
  models::Strategy& s = request.question.strategy;
  if (s.lora) load_in_low_dtype(s);
  say(request,
      "quantization_config of the model: its checkpoint is in MXFP4, on which Transformers does "
      "not "
      "train; planned is what Mxfp4Config(dequantize=True) unpacks it to as it is loaded");
}

}  // namespace

std::string bitsandbytes_storage(const Config& config, models::Quantization& out) {
  constexpr const char* kSkips = "llm_int8_skip_modules";
  const std::vector<std::string> skips = config.texts(kSkips, 4096);
  if (std::ranges::any_of(skips, [](const std::string& name) { return name != "lm_head"; }))
    refuse(config, kSkips, "lm_head alone");
  if (flag(config, "load_in_8bit")) {
    if (config.real("llm_int8_threshold", 6) != 6) refuse(config, "llm_int8_threshold", "6.0");
    for (const char* key : {"llm_int8_has_fp16_weight", "llm_int8_enable_fp32_cpu_offload"})
      if (config.flag(key, false)) refuse(config, key, "false");
    return "int8";
  }
  if (!flag(config, "load_in_4bit")) return "";
  const std::string type = config.text("bnb_4bit_quant_type", "fp4");
  const bool twice = config.flag("bnb_4bit_use_double_quant", false);
  const std::string name = type + (twice ? "-dq" : "");
  if (models::find_packed_storage(name) == nullptr)
    refuse(config, "bnb_4bit_quant_type", "nf4, or fp4 without bnb_4bit_use_double_quant,");
  const std::string held = config.text("bnb_4bit_quant_storage", "uint8");
  const std::optional<DType> dtype = dtype_from(held);
  if (held != "uint8" && !dtype) refuse(config, "bnb_4bit_quant_storage", "uint8 or a float type");
  out.held_in = held == "uint8" ? DType::uint8 : *dtype;
  return name;
}

void apply_quantization_config(const Options& options, Request& request) {
  models::Strategy& s = request.question.strategy;
  if (s.quantize || options.has("quantize")) return;
  const Config model = Config::parse(request.model->config, request.model->spec.name);
  const std::optional<Config> config = model.section("quantization_config");
  if (!config) return;
  models::Quantization packed;
  const std::string method = config->text("quant_method", "");
  if (method == "mxfp4") return unpack_mxfp4(request);
  if (!s.lora) return;
  const std::string name = method == "bitsandbytes" ? bitsandbytes_storage(*config, packed)
                           : method == "gptq"       ? gptq(*config)
                           : method == "awq"        ? awq(*config)
                           : method == "torchao"    ? torchao(*config)
                           : method == "hqq"        ? hqq(*config)
                                                    : "";
  if (name.empty()) return;
  packed.storage = models::find_packed_storage(name);
  s.quantize = packed;
  load_in_low_dtype(s);
  say(request, fmt::format("quantization_config of the model says --quantize {}{}", name,
                           packed.held_in == DType::uint8
                               ? ""
                               : fmt::format(" --quant-storage {}", name_of(packed.held_in))));
}

}  // namespace plimsoll::tools
