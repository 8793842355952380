#include "models/training_arguments_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "models/fsdp_config_reader.h"
#include "models/optimizers.h"
#include "models/training_arguments_keys.h"
#include "models/yaml_reader.h"

namespace plimsoll::models {

namespace {

constexpr std::int64_t kMostBytes = 1 << 20;

// Names of OptimizerNames whose rows say none (models/optimizers.h, `trainer`).
constexpr std::array<std::pair<std::string_view, const char*>, 5> kOtherOptimizers{
    {{"adamw_8bit", "adam8bit"},
     {"galore_adamw", "galore"},
     {"galore_adamw_8bit", "galore8bit"},
     {"lomo", "lomo"},
     {"muon", "muon"}}};

class Reader {
 public:
  explicit Reader(const Config& file) : file_(file) {}

  FileSettings read() {
    sort_keys();
    refuse_unmodelled_keys(file_, kArguments);
    if (file_.has("model_name_or_path")) out_.model = file_.text("model_name_or_path", "");
    batch();
    precision();
    checkpoints();
    optimizer();
    kernels();
    sharding();
    adapters();
    quantization();
    others();
    return std::move(out_);
  }

 private:
  void say(const char* option, std::string value, const char* key) {
    out_.settings.push_back({option, std::move(value), key, !file_.has(key)});
  }
  void note(const std::string& text) { out_.notes.push_back(file_.source() + ": " + text); }

  // A slip in a name that is read would be an answer to another question.
  void sort_keys() {
    std::vector<std::string> foreign;
    for (const std::string& key : unknown_keys(file_, kArguments)) {
      if (std::ranges::find(kArgumentsOfEvaluation, key) != kArgumentsOfEvaluation.end()) continue;
      const std::string near = nearest_key(key, kArguments);
      const auto distance =
          static_cast<std::ptrdiff_t>(near.size()) - static_cast<std::ptrdiff_t>(key.size());
      if (!near.empty() && std::abs(distance) <= 2) refuse_unknown_key(file_, key, kArguments);
      foreign.push_back(key);
    }
    if (foreign.size() == file_.keys().size())
      fail(ErrorKind::bad_input, file_.source() + ": no field of TrainingArguments in it");
    if (!foreign.empty()) note("not of TrainingArguments, and not looked at: " + listed(foreign));
    if (const auto idle = present(file_, kArgumentsNoMemory); !idle.empty())
      note("of no bearing on memory: " + listed(idle));
    if (file_.has("eval_strategy") && !file_.is_text("eval_strategy", "no") &&
        file_.is_set("eval_strategy"))
      note("eval_strategy " + file_.shown("eval_strategy") + ": evaluation is not planned");
  }

  // On the command line truth is a word, too (hf_argparser.py, string_to_bool).
  bool flag(const char* key, bool fallback) const {
    if (!file_.has(key)) return fallback;
    if (file_.is_flag(key)) return file_.flag(key, fallback);
    const std::string value = file_.shown(key);
    for (const char* yes : {"1", "\"true\"", "\"True\"", "\"yes\""})
      if (value == yes) return true;
    for (const char* no : {"0", "\"false\"", "\"False\"", "\"no\""})
      if (value == no) return false;
    file_.refuse(key, "true or false");
  }

  // An object, the same as text, or where `path` a file with it.
  std::optional<Config> section(const char* key, bool path) const {
    if (!file_.has(key)) return std::nullopt;
    if (!file_.is_string(key)) return file_.section(key);
    const std::string text = file_.text(key, "");
    const std::string source = file_.source() + ": " + key;
    if (text.starts_with('{')) return Config::parse(text, source);
    if (!path) file_.refuse(key, "an object");
    return Config::parse(read_text_file(text, kMostBytes), text);
  }

  void batch() {
    say("micro-batch", std::to_string(file_.count("per_device_train_batch_size", 8)),
        "per_device_train_batch_size");
    say("grad-accum", std::to_string(file_.count("gradient_accumulation_steps", 1)),
        "gradient_accumulation_steps");
    if (flag("auto_find_batch_size", false))
      note("auto_find_batch_size: planned is the size that it begins with");
    for (const char* key : {"max_length", "max_seq_length", "block_size", "model_max_length"}) {
      if (!file_.has(key)) continue;
      say("seq-len", std::to_string(file_.count(key, 1)), key);
      if (std::string_view(key).starts_with("max_"))
        note(
            std::string(key) +
            " is of TRL, whose own config classes have other defaults (bf16, "
            "gradient_checkpointing, …) and whose trainers measure more: planned is Trainer's step "
            "with TrainingArguments' defaults");
      break;
    }
  }

  // bf16 and fp16 are autocast; the weights are what from_pretrained was told.
  void precision() {
    const bool bf16 = flag("bf16", false), fp16 = flag("fp16", false);
    if (bf16 && fp16) file_.refuse("bf16", "only one of bf16 and fp16");
    const char* where = file_.has("dtype") ? "dtype" : "torch_dtype";
    std::string dtype = file_.has(where) ? file_.text(where, "") : "";
    if (dtype.starts_with("torch.")) dtype.erase(0, 6);
    constexpr std::array<std::pair<std::string_view, const char*>, 6> kDTypes{{{"bfloat16", "bf16"},
                                                                               {"float16", "fp16"},
                                                                               {"float32", "fp32"},
                                                                               {"bf16", "bf16"},
                                                                               {"fp16", "fp16"},
                                                                               {"fp32", "fp32"}}};
    const auto* found = std::ranges::find(kDTypes, dtype, [](const auto& d) { return d.first; });
    const bool known = found != kDTypes.end();
    if (!dtype.empty() && !known && dtype != "auto")
      file_.refuse(where, "bfloat16, float16, float32 or auto");
    const bool mixed = bf16 || fp16;
    if (mixed) say("precision", bf16 ? "bf16-mixed" : "fp16-mixed", bf16 ? "bf16" : "fp16");
    if (known && mixed) say("param-dtype", found->second, where);
    if (known && !mixed) say("precision", found->second, where);
    if (!known && !mixed) {
      const bool denied = file_.has("bf16") || file_.has("fp16");
      // Without either, a launcher's mixed_precision holds (__post_init__).
      out_.settings.push_back(
          {"precision", "fp32", file_.has("fp16") ? "fp16" : "bf16", !denied, denied});
    }
    if (!known)
      note(dtype == "auto" ? std::string(where) +
                                 " auto: planned are weights loaded in fp32; "
                                 "--param-dtype bf16 plans them in a 16-bit checkpoint's"
                           : "says nothing of the dtype that the weights are loaded in: planned "
                             "is fp32; --param-dtype bf16 (without bf16 or fp16: --precision bf16) "
                             "is what from_pretrained does with a bf16 checkpoint since "
                             "Transformers 5");
  }

  void checkpoints() {
    const bool on = flag("gradient_checkpointing", false);
    say("recompute", on ? "full" : "none", "gradient_checkpointing");
    out_.settings.back().yields = !on;  // to FSDP's own activation_checkpointing
    const auto kwargs = section("gradient_checkpointing_kwargs", false);
    if (!kwargs || !on) return;
    for (const std::string& key : kwargs->keys())
      if (key != "use_reentrant" && key != "preserve_rng_state" && key != "determinism_check")
        refuse_key(*kwargs, key, "is not modelled yet");
    if (kwargs->has("use_reentrant"))
      out_.settings.push_back({"use-reentrant", kwargs->flag("use_reentrant", false) ? "yes" : "no",
                               "gradient_checkpointing_kwargs.use_reentrant", false});
  }

  void optimizer() {
    const std::string name = file_.text("optim", "adamw_torch_fused");
    const std::string arguments = file_.text("optim_args", "");
    const OptimizerRule* found = nullptr;
    for (const OptimizerRule& rule : kOptimizers) {
      const bool is = (rule.trainer.name && name == rule.trainer.name) ||
                      (rule.trainer.fused && name == rule.trainer.fused);
      const bool has_momentum = arguments.find("momentum") != std::string::npos;
      // SGD's momentum stands in optim_args.
      if (is && (found == nullptr || (has_momentum && rule.kind == Optimizer::momentum)))
        found = &rule;
    }
    if (found == nullptr) {
      const auto* other =
          std::ranges::find(kOtherOptimizers, name, [](const auto& o) { return o.first; });
      if (other == kOtherOptimizers.end())
        refuse_key(file_, "optim", "is no optimizer that is modelled");
      say("optimizer", other->second, "optim");
      return;
    }
    say("optimizer", std::string(found->name), "optim");
    if (found->trainer.fused != nullptr)
      say("optimizer-impl", name == found->trainer.fused ? "fused" : "foreach", "optim");
  }

  void kernels() {
    if (flag("torch_compile", false)) say("compile", "", "torch_compile");
    for (const char* key : {"torch_compile_backend", "torch_compile_mode"})
      if (!flag_is_there("torch_compile") && file_.is_set(key)) say("compile", "", key);
    if (flag("use_liger_kernel", false)) say("kernels", "liger", "use_liger_kernel");
    if (flag("use_liger_kernel", false) && file_.is_set("liger_kernel_config"))
      refuse_key(file_, "liger_kernel_config", "a choice of kernels is not modelled yet");
    const std::string attention = file_.text("attn_implementation", "");
    if (attention == "eager" || attention == "sdpa" || attention == "flash_attention_2")
      say("attention",
          attention == "eager"  ? "eager"
          : attention == "sdpa" ? "flash"
                                : "flash-2",
          "attn_implementation");
    else if (!attention.empty())
      refuse_key(file_, "attn_implementation",
                 "only sdpa, eager and flash_attention_2 are modelled");
  }
  bool flag_is_there(const char* key) const { return file_.is_set(key); }

  void sharding() {
    if (file_.is_set("deepspeed")) {
      if (file_.is_set("fsdp")) file_.refuse("fsdp", "only one of fsdp and deepspeed");
      const auto inline_config =
          file_.is_object("deepspeed") ? file_.section("deepspeed") : std::nullopt;
      say("deepspeed", inline_config ? inline_config->dump() : file_.text("deepspeed", ""),
          "deepspeed");
      return;
    }
    if (file_.is_set("fsdp")) fsdp();
    if (const auto sizes = section("parallelism_config", false))
      add_parallelism_settings(*sizes, out_);
    if (file_.has("ddp_bucket_cap_mb"))
      say("bucket-cap-mb", std::to_string(file_.count("ddp_bucket_cap_mb", 25)),
          "ddp_bucket_cap_mb");
    if (file_.has("ddp_backend") && !file_.is_text("ddp_backend", "nccl"))
      refuse_key(file_, "ddp_backend", "only nccl is modelled");
    if (flag("ddp_static_graph", false))
      refuse_key(file_, "ddp_static_graph", "is not modelled yet");
  }

  // `fsdp` is true, or the words of before 5.20: "full_shard auto_wrap".
  void fsdp() {
    const std::string empty = "{}";
    Config config = section("fsdp_config", true)
                        .value_or(Config::parse(empty, file_.source() + ": fsdp_config"));
    std::string words = file_.is_string("fsdp") ? file_.text("fsdp", "") : "";
    if (file_.is_list("fsdp"))
      for (const std::string& word : file_.texts("fsdp", 10)) words += " " + word;
    FsdpDefaults defaults{.version = 2, .trainer = true};
    FileSettings read;
    add_fsdp_settings(config, defaults, 0, read);
    for (FileSetting& setting : read.settings)
      if (setting.option == "zero" && !words.empty() && setting.is_default)
        setting = from_words(words, setting);
    const bool offloads = std::ranges::any_of(
        read.settings, [](const FileSetting& setting) { return setting.option == "offload"; });
    if (words.find("offload") != std::string::npos && !offloads)
      read.settings.push_back({"offload", "params", "fsdp", false});
    out_.settings.push_back({"stack", "pytorch", "fsdp", false});
    out_.settings.insert(out_.settings.end(), read.settings.begin(), read.settings.end());
    out_.notes.insert(out_.notes.end(), read.notes.begin(), read.notes.end());
    if (flag("gradient_checkpointing", false))
      note(
          "gradient_checkpointing under FSDP gathers each layer once more than "
          "activation_checkpointing of fsdp_config, which is planned");
  }

  FileSetting from_words(const std::string& words, FileSetting setting) const {
    const auto has = [&](const char* word) { return words.find(word) != std::string::npos; };
    if (has("hybrid_shard") || has("no_shard"))
      refuse_key(file_, "fsdp", "is FSDP1's; full_shard and shard_grad_op are modelled");
    if (!has("full_shard") && !has("shard_grad_op") && !has("auto_wrap"))
      file_.refuse("fsdp", "true, full_shard or shard_grad_op, and auto_wrap");
    setting.value = has("shard_grad_op") ? "2" : "3";
    setting.key = "fsdp";
    setting.is_default = false;
    return setting;
  }

  // trl/trainer/model_config.py: use_peft turns the others on.
  void adapters() {
    if (!flag("use_peft", false)) {
      for (const char* key : {"lora_r", "lora_alpha", "lora_dropout", "lora_target_modules"})
        if (file_.is_set(key)) note(std::string(key) + " is not looked at without use_peft");
      return;
    }
    say("lora-rank", std::to_string(file_.count("lora_r", 16)), "lora_r");
    say("lora-alpha", fmt::format("{}", file_.real("lora_alpha", 32)), "lora_alpha");
    say("lora-dropout", fmt::format("{}", file_.probability("lora_dropout", 0.05)), "lora_dropout");
    std::string targets;
    if (file_.is_list("lora_target_modules"))
      for (const std::string& name : file_.texts("lora_target_modules", 1000))
        targets += (targets.empty() ? "" : ",") + name;
    else
      targets = file_.text("lora_target_modules", "");
    if (!targets.empty())
      say("lora-targets", targets, "lora_target_modules");
    else
      refuse_targets();
  }
  [[noreturn]] void refuse_targets() const {
    file_.refuse("lora_target_modules", "all-linear or a list of names");
  }

  void quantization() {
    const bool four = flag("load_in_4bit", false), eight = flag("load_in_8bit", false);
    if (four && eight) file_.refuse("load_in_4bit", "only one of load_in_4bit and load_in_8bit");
    if (eight) say("quantize", "int8", "load_in_8bit");
    if (!four) return;
    const std::string kind = file_.text("bnb_4bit_quant_type", "nf4");
    if (kind != "nf4" && kind != "fp4") file_.refuse("bnb_4bit_quant_type", "nf4 or fp4");
    const bool nested = flag("use_bnb_nested_quant", false);
    if (nested && kind == "fp4")
      refuse_key(file_, "use_bnb_nested_quant", "is modelled for nf4 only");
    say("quantize", nested ? "nf4-dq" : kind, "load_in_4bit");
  }

  void others() {
    if (flag("use_cpu", false)) refuse_key(file_, "use_cpu", "training on a CPU is not modelled");
    if (const auto config = section("accelerator_config", true))
      if (config->is_set("split_batches"))
        refuse_key(*config, "split_batches", "is not modelled yet");
    if (file_.is_set("torch_empty_cache_steps"))
      note("torch_empty_cache_steps: planned is a cache that is never emptied");
    if (flag("ddp_find_unused_parameters", false))
      note("ddp_find_unused_parameters: planned as false");
  }

  const Config& file_;
  FileSettings out_;
};

}  // namespace

FileSettings read_training_arguments(std::string_view text, const std::string& source) {
  const Config file = Config::parse(json_from_json_or_yaml(std::string(text), source), source);
  return Reader(file).read();
}

}  // namespace plimsoll::models
