#include "models/training_arguments_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "models/trainer_file.h"
#include "models/training_arguments_keys.h"
#include "models/yaml_reader.h"

namespace plimsoll::models {

namespace {

class Reader : TrainerFile {
 public:
  explicit Reader(const Config& file) : TrainerFile(file, nullptr) {}

  FileSettings read() {
    sort_keys(kArguments, kArgumentsOfEvaluation, "TrainingArguments");
    if (file_.has("eval_strategy") && !file_.is_text("eval_strategy", "no") &&
        file_.is_set("eval_strategy"))
      note("eval_strategy " + file_.shown("eval_strategy") + ": evaluation is not planned");
    refuse_unmodelled_keys(file_, kArguments);
    if (file_.has("model_name_or_path")) out_.model = file_.text("model_name_or_path", "");
    batch();
    precision();
    checkpoints();
    optimizer("optim", "optim_args");
    kernels();
    sharding(2);
    adapters();
    quantization();
    others();
    return std::move(out_);
  }

 private:
  void batch() {
    sizes("per_device_train_batch_size", "gradient_accumulation_steps");
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
    if (on) reentrant();
  }

  void kernels() {
    compile();
    if (flag("use_liger_kernel", false)) say("kernels", "liger", "use_liger_kernel");
    if (flag("use_liger_kernel", false) && file_.is_set("liger_kernel_config"))
      refuse_key(file_, "liger_kernel_config", "a choice of kernels is not modelled yet");
    attention("attn_implementation", file_.text("attn_implementation", ""));
    if (flag("activation_offloading", false))  // trl/trainer/sft_config.py
      say("offload", "activations", "activation_offloading");
  }

  // trl/trainer/model_config.py: use_peft turns the others on.
  void adapters() {
    if (!flag("use_peft", false)) {
      if (!file_.has("use_peft")) refuse_other_adapters();
      for (const char* key : {"lora_r", "lora_alpha", "lora_dropout", "lora_target_modules",
                              "lora_modules_to_save", "use_dora"})
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
    further("lora_modules_to_save", "use_dora");
  }
  // Scripts that train adapters, or pack the base, by arguments of their own: qlora.py's and
  // LLaVA's bits, FastChat's q_lora, LLaVA's lora_enable. Without them it is another run that is
  // planned.
  void refuse_other_adapters() const {
    for (const char* key :
         {"lora_r", "lora_rank", "lora_enable", "use_lora", "q_lora", "use_qlora"})
      if (file_.is_set(key))
        file_.refuse(key,
                     "use_peft beside it (TRL's; false: no adapters are trained), or instead of it "
                     "--lora-rank N");
    for (const char* bits : {"4", "8"})
      if (file_.shown("bits") == bits)
        file_.refuse("bits", std::string("instead of it --quantize ") +
                                 (bits[0] == '4' ? "nf4-dq or nf4" : "int8"));
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
};

}  // namespace

FileSettings read_training_arguments(std::string_view text, const std::string& source) {
  const Config file = Config::parse(json_from_json_or_yaml(std::string(text), source), source);
  return Reader(file).read();
}

}  // namespace plimsoll::models
