#include "models/peft_config_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

#include "models/file_keys.h"
#include "models/lora.h"
#include "models/peft_targets.h"
#include "models/prompt_adapters.h"
#include "models/run_names.h"

namespace plimsoll::models {

namespace {

constexpr auto kRead = std::to_array<std::string_view>(
    {"peft_type", "r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "bias",
     "layers_to_transform", "layers_pattern", "task_type", "init_lora_weights", "use_dora",
     "modules_to_save", "lora_bias", "target_parameters"});
constexpr auto kUnmodelled = std::to_array<std::string_view>(
    {"rank_pattern", "megatron_config", "trainable_token_indices", "loftq_config", "velora_config",
     "alora_invocation_tokens", "use_qalora", "monteclora_config", "layer_replication",
     "use_bdlora", "arrow_config", "kasa_config", "ensure_weight_tying"});
// Factors, initial values, names, and what is of inference.
constexpr auto kNoMemory = std::to_array<std::string_view>(
    {"auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
     "fan_in_fan_out", "use_rslora", "alpha_pattern", "megatron_core", "eva_config", "corda_config",
     "lora_ga_config", "qalora_group_size", "runtime_config"});
constexpr KeyTable kTable{kRead, kUnmodelled, kNoMemory};
// peft/tuners/vera/config.py.
constexpr auto kReadOfVera = std::to_array<std::string_view>(
    {"peft_type", "r", "vera_dropout", "target_modules", "exclude_modules", "layers_to_transform",
     "layers_pattern", "task_type", "modules_to_save", "bias"});
constexpr auto kNoMemoryOfVera = std::to_array<std::string_view>(
    {"auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
     "fan_in_fan_out", "projection_prng_key", "save_projection", "d_initial", "init_weights"});
// peft/tuners/ia3/config.py.
constexpr auto kReadOfIa3 =
    std::to_array<std::string_view>({"peft_type", "target_modules", "exclude_modules",
                                     "feedforward_modules", "task_type", "modules_to_save"});
constexpr auto kNoMemoryOfIa3 = std::to_array<std::string_view>(
    {"auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
     "fan_in_fan_out", "init_ia3_weights"});
// peft/config.py, PromptLearningConfig; peft/tuners/prompt_tuning/config.py.
constexpr auto kReadOfPrompt =
    std::to_array<std::string_view>({"peft_type", "task_type", "num_virtual_tokens",
                                     "num_transformer_submodules", "token_dim", "modules_to_save"});
constexpr auto kNoMemoryOfPrompt = std::to_array<std::string_view>(
    {"auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
     "num_attention_heads", "num_layers", "prompt_tuning_init", "prompt_tuning_init_text",
     "tokenizer_name_or_path", "tokenizer_kwargs"});
// peft/tuners/p_tuning/config.py. A perceptron has two inner layers, whatever encoder_num_layers
// says, and no dropout.
constexpr auto kReadOfPTuning = std::to_array<std::string_view>(
    {"peft_type", "task_type", "num_virtual_tokens", "num_transformer_submodules", "token_dim",
     "modules_to_save", "encoder_hidden_size", "encoder_reparameterization_type"});
constexpr auto kNoMemoryOfPTuning = std::to_array<std::string_view>(
    {"auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
     "num_attention_heads", "num_layers", "encoder_num_layers", "encoder_dropout"});
// peft/tuners/prefix_tuning/config.py.
constexpr auto kReadOfPrefix = std::to_array<std::string_view>(
    {"peft_type", "task_type", "num_virtual_tokens", "num_transformer_submodules", "token_dim",
     "modules_to_save", "prefix_projection", "encoder_hidden_size"});
constexpr auto kNoMemoryOfPrefix = std::to_array<std::string_view>(
    {"auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
     "num_attention_heads", "num_layers", "init_weights"});
constexpr std::array<std::string_view, 0> kNoneUnmodelled{};
constexpr KeyTable kPromptTable{kReadOfPrompt, kNoneUnmodelled, kNoMemoryOfPrompt};
constexpr KeyTable kPTuningTable{kReadOfPTuning, kNoneUnmodelled, kNoMemoryOfPTuning};
constexpr KeyTable kPrefixTable{kReadOfPrefix, kNoneUnmodelled, kNoMemoryOfPrefix};
constexpr KeyTable kIa3Table{kReadOfIa3, kNoneUnmodelled, kNoMemoryOfIa3};
constexpr KeyTable kVeraTable{kReadOfVera, kNoneUnmodelled, kNoMemoryOfVera};

// A list of names that --lora-targets takes as PEFT does.
bool is_plain_list(const Config& file) {
  if (!file.is_list("target_modules") || file.is_set("exclude_modules") ||
      file.has("layers_to_transform"))
    return false;
  const std::vector<std::string> names = file.texts("target_modules", 1000);
  return !names.empty() && std::ranges::find(names, "attention") == names.end();
}

std::string joined(const Config& file, const std::vector<std::string>& names,
                   const char* key = "target_modules") {
  std::string out;
  for (const std::string& name : names) {
    if (name.empty() || name.find(',') != std::string::npos)
      file.refuse(key, "names of modules, none of them empty or with a comma,");
    out += (out.empty() ? "" : ",") + name;
  }
  return out;
}

std::string targets(const Config& file, const ModelSpec* model) {
  if (is_plain_list(file)) return joined(file, file.texts("target_modules", 1000));
  if (file.is_text("target_modules", "all-linear") && !file.is_set("exclude_modules"))
    return "all-linear";
  if (file.has("target_modules") && !file.is_list("target_modules") &&
      !file.is_string("target_modules"))
    file.refuse("target_modules", "a list of names, a regular expression or \"all-linear\"");
  check(model != nullptr, ErrorKind::bad_input,
        [&] { return file.source() + ": its target_modules cannot be found without a MODEL"; });
  return joined(file, peft_targets(file, *model));
}

void check_kind(const Config& file) {
  constexpr auto kTypes = std::to_array<std::string_view>(
      {"LORA", "IA3", "VERA", "PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING"});
  const std::string type = file.text("peft_type", "LORA");
  if (std::ranges::find(kTypes, type) == kTypes.end())
    refuse_key(file, "peft_type",
               "only LORA, IA3, VERA, PROMPT_TUNING, P_TUNING and PREFIX_TUNING are modelled");
  const bool biases = type == "LORA" || type == "VERA";
  if (biases && file.text("bias", "none") != "none")
    refuse_key(file, "bias", "trained biases beside adapters are not modelled yet");
  const std::string task = file.text("task_type", "CAUSAL_LM");
  if (task != "CAUSAL_LM")
    refuse_key(file, "task_type", "only CAUSAL_LM is modelled (others train a head of their own)");
}

using Say = std::function<void(const char* option, std::string value, const char* key)>;

void say_saved(const Config& file, const Say& say) {
  if (file.is_set("modules_to_save"))
    say("modules-to-save", joined(file, file.texts("modules_to_save", 1000), "modules_to_save"),
        "modules_to_save");
}

void read_ia3(const Config& file, const ModelSpec* model, const Say& say) {
  say("adapter", "ia3", "peft_type");
  // Without them PEFT takes its own, as the options do.
  if (file.is_set("target_modules")) say("lora-targets", targets(file, model), "target_modules");
  if (file.is_string("feedforward_modules"))
    refuse_key(file, "feedforward_modules", "a pattern is not modelled yet: name the modules");
  if (file.has("feedforward_modules") && file.is_list("feedforward_modules")) {
    const std::vector<std::string> names = file.texts("feedforward_modules", 1000);
    say("feedforward-modules", names.empty() ? "none" : joined(file, names, "feedforward_modules"),
        "feedforward_modules");
  }
  say_saved(file, say);
}

void read_vera(const Config& file, const ModelSpec* model, const Say& say) {
  say("adapter", "vera", "peft_type");
  say("lora-rank", std::to_string(file.count("r", 256)), "r");
  say("lora-dropout", fmt::format("{}", file.probability("vera_dropout", 0)), "vera_dropout");
  say("lora-targets", targets(file, model), "target_modules");
  say_saved(file, say);
}

// PEFT's own width of a prefix's perceptron is that of a layer's keys (utils/other.py).
void read_prefix_encoder(const Config& file, const ModelSpec* model, const Say& say) {
  if (!file.flag("prefix_projection", false)) return;
  std::int64_t inner = file.natural("encoder_hidden_size", 0);
  check(inner > 0 || (model != nullptr && model->decoder), ErrorKind::bad_input, [&] {
    return file.source() +
           ": prefix_projection needs encoder_hidden_size, or a MODEL whose keys' "
           "width is PEFT's own";
  });
  if (inner == 0) inner = model->decoder->kv_width();
  say("encoder-hidden", std::to_string(inner), "encoder_hidden_size");
}

void read_prompt(const Config& file, const ModelSpec* model, AdapterKind kind, const Say& say) {
  const bool prefix = kind == AdapterKind::prefix_tuning;
  say("adapter", std::string(name_of(kind)), "peft_type");
  const std::int64_t tokens = file.natural("num_virtual_tokens", 0);
  if (tokens < 1) file.refuse("num_virtual_tokens", "a number of tokens, at least 1,");
  say("virtual-tokens", std::to_string(tokens), "num_virtual_tokens");
  if (file.natural("num_transformer_submodules", 1) > 1)
    refuse_key(file, "num_transformer_submodules",
               "a prompt of its own for encoder and decoder is not modelled");
  if (file.is_set("modules_to_save"))
    refuse_key(file, "modules_to_save", "beside a prompt that is learned it is not modelled");
  const std::int64_t width = file.natural("token_dim", 0);
  if (width > 0 && model != nullptr && model->decoder) {
    const Decoder& d = *model->decoder;
    if (const std::int64_t own = prefix ? d.kv_width() : d.hidden; width != own)
      refuse_key(file, "token_dim",
                 fmt::format("{} has {} {}", model->name,
                             prefix ? "keys of a width of" : "a hidden size of", own));
  }
  if (prefix) return read_prefix_encoder(file, model, say);
  if (kind != AdapterKind::p_tuning) return;
  if (file.text("encoder_reparameterization_type", "MLP") != "MLP")
    refuse_key(file, "encoder_reparameterization_type",
               "LSTM is not modelled: cuDNN's own workspace was not measured (MLP is)");
  if (const std::int64_t inner = file.natural("encoder_hidden_size", 0); inner > 0)
    say("encoder-hidden", std::to_string(inner), "encoder_hidden_size");
}

void read_lora(const Config& file, const std::string& source, const ModelSpec* model,
               const Say& say, std::vector<std::string>& notes) {
  say("lora-rank", std::to_string(file.count("r", 8)), "r");
  const double alpha = file.real("lora_alpha", 8);
  if (alpha < 0) file.refuse("lora_alpha", "a number from 0 up");
  say("lora-alpha", fmt::format("{}", alpha), "lora_alpha");
  say("lora-dropout", fmt::format("{}", file.probability("lora_dropout", 0)), "lora_dropout");
  // Without target_modules the parameters are all that is adapted.
  if (!file.is_set("target_parameters") || file.is_set("target_modules"))
    say("lora-targets", targets(file, model), "target_modules");
  if (file.is_set("target_parameters"))
    say("target-parameters",
        joined(file, file.texts("target_parameters", 1000), "target_parameters"),
        "target_parameters");
  say_saved(file, say);
  if (file.flag("lora_bias", false)) say("lora-bias", "yes", "lora_bias");
  if (file.flag("use_dora", false)) say("use-dora", "yes", "use_dora");
  // PiSSA, OLoRA, LoftQ and others: values of A and B, and of a base that keeps its dtype.
  if (file.is_string("init_lora_weights"))
    notes.push_back(
        fmt::format("{}: init_lora_weights {} is made before the first step, whose "
                    "memory it leaves as it is; what making it takes is not planned",
                    source, file.shown("init_lora_weights")));
}

}  // namespace

FileSettings read_peft_config(std::string_view text, const std::string& source,
                              const ModelSpec* model) {
  const Config file = Config::parse(text, source);
  check_kind(file);
  FileSettings out;
  std::vector<std::string> unknown;
  const bool ia3 = file.is_text("peft_type", "IA3"), vera = file.is_text("peft_type", "VERA");
  const AdapterKind kind = file.is_text("peft_type", "P_TUNING")        ? AdapterKind::p_tuning
                           : file.is_text("peft_type", "PREFIX_TUNING") ? AdapterKind::prefix_tuning
                           : file.is_text("peft_type", "PROMPT_TUNING") ? AdapterKind::prompt_tuning
                                                                        : AdapterKind::lora;
  const KeyTable& table = ia3                                  ? kIa3Table
                          : vera                               ? kVeraTable
                          : kind == AdapterKind::p_tuning      ? kPTuningTable
                          : kind == AdapterKind::prefix_tuning ? kPrefixTable
                          : kind == AdapterKind::prompt_tuning ? kPromptTable
                                                               : kTable;
  for (const std::string& key : unknown_keys(file, table)) {
    if (!nearest_key(key, table).empty()) refuse_unknown_key(file, key, table);
    unknown.push_back(key);
  }
  refuse_unmodelled_keys(file, table);
  const Say say = [&](const char* option, std::string value, const char* key) {
    out.settings.push_back({option, std::move(value), key, !file.has(key)});
  };
  if (ia3)
    read_ia3(file, model, say);
  else if (vera)
    read_vera(file, model, say);
  else if (learns_prompt(kind))
    read_prompt(file, model, kind, say);
  else
    read_lora(file, source, model, say, out.notes);
  if (!unknown.empty())
    out.notes.push_back(
        fmt::format("{}: PEFT knows no {} and ignores it", source, listed(unknown)));
  auto idle = present(file, table.no_memory);
  std::erase(idle, "base_model_name_or_path");  // peft_base_model
  if (!idle.empty())
    out.notes.push_back(fmt::format("{}: of no bearing on memory: {}", source, listed(idle)));
  return out;
}

std::string peft_base_model(std::string_view text, const std::string& source) {
  const Config file = Config::parse(text, source);
  return file.is_string("base_model_name_or_path") ? file.text("base_model_name_or_path", "") : "";
}

}  // namespace plimsoll::models
