#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/base/quantity.h"
#include "models/trainer_config_reader.h"
#include "models/trainer_file.h"
#include "models/trainer_keys.h"
#include "models/yaml_reader.h"

namespace plimsoll::models {

namespace {

// swift/config/NAME.json, as far as memory goes.
std::string deepspeed_preset(const std::string& name) {
  if (name.size() < 5 || !name.starts_with("zero") || name[4] < '0' || name[4] > '3') return "";
  const char stage = name[4];
  const std::string rest = name.substr(5);
  if (!rest.empty() && (rest != "_offload" || stage < '2')) return "";
  const std::string to_host = R"({"device": "cpu", "pin_memory": true})";
  std::string zero = fmt::format(R"("stage": {}, "overlap_comm": false)", stage);
  if (stage == '3')
    zero +=
        R"(, "sub_group_size": 1e9, "reduce_bucket_size": "auto", )"
        R"("stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto", )"
        R"("stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9)";
  else
    zero += R"(, "allgather_bucket_size": 2e8, "reduce_bucket_size": 2e8)";
  if (!rest.empty()) zero += ", \"offload_optimizer\": " + to_host;
  if (!rest.empty() && stage == '3') zero += ", \"offload_param\": " + to_host;
  return R"({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}, "zero_optimization": {)" +
         zero + "}}";
}

class Reader : TrainerFile {
 public:
  Reader(const Config& file, std::int64_t ranks)
      : TrainerFile(file, find_trainer("ms-swift")), ranks_(ranks) {}

  FileSettings read() {
    sort_keys(swift_keys(), {}, "ms-swift 4.6");
    refuse_unmodelled_keys(file_, swift_keys());
    if (!file_.has("model")) file_.refuse("model", "a model's name or path");
    out_.model = file_.text("model", "");
    environment();
    kind();
    batch();
    precision();
    spread();
    checkpoints();
    optimizer("optim", "optim_args");
    kernels();
    adapters();
    others();
    return finished();
  }

 private:
  // cli/main.py, parse_yaml_args.
  void environment() {
    const auto variables = file_.section("ENV");
    if (!variables) return;
    std::vector<std::string> others;
    for (const std::string& name : variables->keys()) {
      const std::string value =
          variables->is_string(name) ? variables->text(name, "") : variables->shown(name);
      if (name == "PYTORCH_CUDA_ALLOC_CONF") {
        out_.settings.push_back({"allocator-conf", value, "ENV.PYTORCH_CUDA_ALLOC_CONF", false});
      } else if (name == "NPROC_PER_NODE") {
        const bool number = !value.empty() && value.size() < 6 &&
                            value.find_first_not_of("0123456789") == std::string::npos;
        if (!number || std::stoll(value) < 1) variables->refuse(name, "a number from 1 up");
        ranks_ = std::stoll(value);
        out_.settings.push_back({"gpus", value, "ENV.NPROC_PER_NODE", false});
      } else {
        others.push_back(name);
      }
    }
    if (!others.empty()) note("ENV: variables that are not looked at: " + listed(others));
  }

  void kind() {
    const char* key = file_.has("tuner_type") ? "tuner_type" : "train_type";
    const std::string type = file_.text(key, "lora");
    lora_ = type == "lora";
    if (!lora_ && type != "full") refuse_key(file_, key, "only lora and full are modelled");
    frozen();
    if (file_.has("task_type") && !file_.is_text("task_type", "causal_lm"))
      refuse_key(file_, "task_type", "only causal_lm is modelled");
    if (file_.is_text("tuner_backend", "unsloth")) state("kernels", "unsloth", "tuner_backend");
    for (const char* loss : {"loss_type", "loss_scale"})
      if (file_.has(loss) && !file_.is_text(loss, "default") && !file_.is_text(loss, "all"))
        refuse_key(file_, loss, "only the model's own loss is modelled");
    for (const char* eval : {"val_dataset", "split_dataset_ratio"})
      if (file_.is_set(eval)) note(std::string(eval) + ": evaluation is not planned");
    if (flag("use_logits_to_keep", false))
      refuse_key(file_, "use_logits_to_keep", "is not modelled yet");
  }

  // pipelines/train/tuner.py, TunerMixin.prepare_model: first all is trained;
  // transformers_utils.py, freeze_parameters and activate_parameters.
  void frozen() {
    const bool freezes = file_.is_set("freeze_parameters");
    if (!lora_ && freezes) {
      prefixes("freeze_parameters", "freeze");
      prefixes("trainable_parameters", "train");
      return;
    }
    for (const char* key : {"freeze_parameters", "trainable_parameters"})
      if (file_.is_set(key))
        note(std::string(key) + (lora_ ? " is not looked at with adapters"
                                       : " adds nothing: no freeze_parameters is there"));
  }

  // trainers/arguments.py: 16 sequences a step, where nothing is said.
  void batch() {
    sizes("per_device_train_batch_size", "gradient_accumulation_steps");
    if (!file_.has("gradient_accumulation_steps")) {
      const std::int64_t once =
          checked_multiply(file_.count("per_device_train_batch_size", 1), ranks_);
      const std::int64_t steps = std::max<std::int64_t>(1, (16 + once - 1) / once);
      out_.settings.back() = {"grad-accum", std::to_string(steps), "gradient_accumulation_steps",
                              true};
    }
    const char* key = file_.has("packing_length") ? "packing_length" : "max_length";
    if (file_.has(key))
      state("seq-len", std::to_string(file_.count(key, 1)), key);
    else
      note(
          "says no max_length, and ms-swift then takes samples as long as the model does: "
          "--seq-len says what is planned (4096 otherwise)");
    if (flag("packing", false) || flag("padding_free", false))
      note("packing, padding_free: planned are rows that are full");
  }

  // base_args/model_args.py, _init_mixed_precision; weights stay in torch_dtype.
  void precision() {
    const std::string dtype = file_.text("torch_dtype", "bfloat16");
    constexpr std::array<std::pair<std::string_view, const char*>, 3> kDTypes{
        {{"bfloat16", "bf16"}, {"float16", "fp16"}, {"float32", "fp32"}}};
    const auto* found = std::ranges::find(kDTypes, dtype, [](const auto& d) { return d.first; });
    if (found == kDTypes.end()) file_.refuse("torch_dtype", "bfloat16, float16 or float32");
    if (!file_.has("torch_dtype"))
      note("says no torch_dtype, which ms-swift then reads in config.json: planned is bfloat16");
    dtype_ = found->second;
    const bool bf16 = flag("bf16", dtype_ == "bf16"), fp16 = flag("fp16", dtype_ != "bf16");
    if (bf16 && fp16)
      file_.refuse(file_.has("bf16") ? "bf16" : "fp16", "only one of bf16 and fp16");
    const bool silent = !file_.has("torch_dtype") && !file_.has("bf16") && !file_.has("fp16");
    const char* key = file_.has("bf16") ? "bf16" : file_.has("fp16") ? "fp16" : "torch_dtype";
    const std::string kind = bf16 ? "bf16-mixed" : fp16 ? "fp16-mixed" : dtype_;
    out_.settings.push_back({"precision", kind, key, silent});
    out_.settings.push_back({"param-dtype", dtype_, "torch_dtype", silent});
  }

  void spread() {
    if (file_.is_set("fsdp") && file_.is_set("deepspeed"))
      file_.refuse("fsdp", "only one of fsdp and deepspeed");
    const std::string preset =
        file_.is_string("deepspeed") ? deepspeed_preset(file_.text("deepspeed", "")) : "";
    if (!preset.empty()) {
      state("deepspeed", preset, "deepspeed");
      note("deepspeed " + file_.text("deepspeed", "") + ": planned is ms-swift's own file");
    } else if (file_.is_text("fsdp", "fsdp2")) {
      // swift/config/fsdp2.json
      for (const auto& [option, value] :
           {std::pair{"stack", "pytorch"}, std::pair{"fsdp-version", "2"}, std::pair{"zero", "3"}})
        state(option, value, "fsdp");
      ddp();
    } else if (file_.is_set("fsdp")) {
      refuse_key(file_, "fsdp", "only fsdp2 is modelled from this file");
    } else {
      sharding(2);
    }
  }

  void checkpoints() {
    const bool fsdp = file_.is_set("fsdp");
    const bool on = fsdp || flag("gradient_checkpointing", true);
    if (fsdp)
      state("recompute", "full", "fsdp");
    else
      say("recompute", on ? "full" : "none", "gradient_checkpointing");
    if (!on || fsdp || reentrant()) return;
    // trainers/mixin.py, _fix_gradient_checkpointing
    const bool off = ranks_ > 1 && !file_.is_set("deepspeed");
    out_.settings.push_back(
        {"use-reentrant", off ? "no" : "yes", "gradient_checkpointing_kwargs", true});
  }

  void kernels() {
    compile();
    if (flag("use_liger_kernel", false)) state("kernels", "liger", "use_liger_kernel");
    const std::string name = file_.text("attn_impl", "");
    attention("attn_impl", name == "flash_attn" ? "flash_attention_2" : name);
  }

  void adapters() {
    if (!lora_) {
      if (file_.is_set("quant_bits")) file_.refuse("quant_bits", "tuner_type lora beside it");
      return;
    }
    low_rank("lora_rank", "lora_alpha", "lora_dropout");
    if (!file_.has("lora_alpha")) replace("lora-alpha", "32");
    if (!file_.has("lora_dropout")) replace("lora-dropout", "0.05");
    if (file_.is_set("target_regex"))
      refuse_key(file_, "target_regex", "is not modelled from this file; --peft reads patterns");
    const std::string names =
        file_.has("target_modules") ? targets("target_modules") : "all-linear";
    say("lora-targets", names, "target_modules");
    if (file_.has("lora_bias") && !file_.is_text("lora_bias", "none"))
      refuse_key(file_, "lora_bias", "trained biases are not modelled yet");
    const std::string dtype = file_.text("lora_dtype", "");
    if (dtype == "bfloat16" || dtype == "float32")
      state("adapter-dtype", dtype == "bfloat16" ? "bf16" : "fp32", "lora_dtype");
    else if (!dtype.empty())
      refuse_key(file_, "lora_dtype", "only bfloat16 and float32 are modelled");
    further("modules_to_save", "use_dora");
    saved_modules();
    // tuners/peft.py, _convert_dtype: not of DoRA's magnitudes.
    if (flag("use_dora", false) && !dtype.empty() &&
        (dtype == "bfloat16" ? "bf16" : "fp32") != dtype_)
      refuse_key(file_, "lora_dtype", "magnitudes of another dtype (use_dora) are not modelled");
    quantization();
  }

  // pipelines/train/tuner.py: get_modules_to_save; prepare_model casts trained fp16 to fp32.
  void saved_modules() const {
    if (!file_.is_set("modules_to_save")) return;
    for (const std::string& name : names("modules_to_save"))
      if (name == "all-embedding" || name == "all-norm")
        refuse_key(file_, "modules_to_save", name + " is not modelled; names of modules are");
    if (dtype_ == "fp16")
      refuse_key(file_, "modules_to_save",
                 "copies in fp32 between layers in fp16 are not modelled; bfloat16 is");
  }

  void replace(const char* option, const char* value) {
    std::ranges::find(out_.settings, option, &FileSetting::option)->value = value;
  }

  void quantization() {
    if (!file_.is_set("quant_method") && !file_.is_set("quant_bits")) return;
    if (!file_.is_text("quant_method", "bnb"))
      refuse_key(file_, "quant_method", "only bnb is modelled");
    if (!file_.has("quant_bits")) file_.refuse("quant_bits", "4 or 8");
    const std::int64_t bits = file_.count("quant_bits", 4);
    // Nothing calls PEFT's prepare_model_for_kbit_training.
    state("kbit-prep", "no", "quant_bits");
    if (bits == 8) return state("quantize", "int8", "quant_bits");
    if (bits != 4) file_.refuse("quant_bits", "4 or 8");
    const std::string kind = file_.text("bnb_4bit_quant_type", "nf4");
    if (kind != "nf4" && kind != "fp4") file_.refuse("bnb_4bit_quant_type", "nf4 or fp4");
    const bool nested = flag("bnb_4bit_use_double_quant", true);
    if (nested && kind == "fp4")
      refuse_key(file_, "bnb_4bit_quant_type",
                 "with bnb_4bit_use_double_quant, its default, only nf4 is modelled");
    state("quantize", nested ? "nf4-dq" : kind, "quant_bits");
    const std::string storage = file_.text("bnb_4bit_quant_storage", "uint8");
    constexpr std::array<std::pair<std::string_view, const char*>, 4> kStorages{
        {{"uint8", "uint8"}, {"bfloat16", "bf16"}, {"float16", "fp16"}, {"float32", "fp32"}}};
    const auto* found =
        std::ranges::find(kStorages, storage, [](const auto& s) { return s.first; });
    if (found == kStorages.end())
      file_.refuse("bnb_4bit_quant_storage", "uint8, bfloat16, float16 or float32");
    say("quant-storage", found->second, "bnb_4bit_quant_storage");
  }

  std::int64_t ranks_;
  bool lora_ = false;
  std::string dtype_;
};

}  // namespace

FileSettings read_swift_arguments(std::string_view text, const std::string& source,
                                  std::int64_t ranks) {
  const Config file = Config::parse(json_from_json_or_yaml(std::string(text), source), source);
  return Reader(file, ranks).read();
}

}  // namespace plimsoll::models
