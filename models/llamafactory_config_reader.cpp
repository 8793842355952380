#include <fmt/format.h>

#include "models/trainer_config_reader.h"
#include "models/trainer_file.h"
#include "models/trainer_keys.h"
#include "models/yaml_reader.h"

namespace plimsoll::models {

namespace {

class Reader : TrainerFile {
 public:
  explicit Reader(const Config& file) : TrainerFile(file, find_trainer("llamafactory")) {}

  FileSettings read() {
    other_programs();
    sort_keys(llamafactory_keys(), {}, "LLaMA-Factory 0.9.5");
    refuse_unmodelled_keys(file_, llamafactory_keys());
    if (!file_.has("model_name_or_path")) file_.refuse("model_name_or_path", "a model's name");
    out_.model = file_.text("model_name_or_path", "");
    stage();
    sizes("per_device_train_batch_size", "gradient_accumulation_steps");
    say("seq-len", std::to_string(file_.count("cutoff_len", 2048)), "cutoff_len");
    method();
    precision();
    checkpoints();
    optimizer("optim", "optim_args");
    kernels();
    sharding(2);
    quantization();
    others();
    return finished();
  }

 private:
  // cli.py, USE_V1; hparams/parser.py, USE_MCA: other trainers behind the same command.
  void other_programs() const {
    if (file_.has("train_dataset") && !file_.has("model_name_or_path"))
      refuse_key(file_, "train_dataset", "files of LLaMA-Factory's v1 (USE_V1) are not read yet");
    for (const std::string_view key : megatron_keys())
      if (file_.has(key))
        refuse_key(file_, key, "training by Megatron (USE_MCA) is not modelled yet");
  }

  void stage() {
    const std::string stage = file_.text("stage", "sft");
    if (stage != "sft" && stage != "pt") refuse_key(file_, "stage", "only sft and pt are modelled");
    if (file_.has("do_train") && !flag("do_train", true))
      refuse_key(file_, "do_train", "only training is modelled");
    for (const char* key : {"val_size", "eval_dataset", "do_eval", "predict_with_generate"})
      if (file_.is_set(key)) note(std::string(key) + ": evaluation is not planned");
    if (flag("packing", stage == "pt"))
      note("packing: planned are rows as long as cutoff_len, whether they hold one sample or many");
    resizes_ = flag("resize_vocab", false);
    if (resizes_) note("resize_vocab: planned is the vocabulary of the model's config");
  }

  void method() {
    const std::string type = file_.text("finetuning_type", "lora");
    lora_ = type == "lora";
    if (!lora_ && type != "full")
      refuse_key(file_, "finetuning_type",
                 "only lora and full are modelled from this file (--freeze and --train say which "
                 "parameters are trained)");
    if (!lora_ && flag("use_dora", false))
      file_.refuse("use_dora", "finetuning_type lora beside it");
    if (!lora_ && file_.is_set("additional_target"))
      note("additional_target is not looked at with finetuning_type full");
    if (!lora_) return;
    const std::int64_t rank = file_.count("lora_rank", 8);
    low_rank("lora_rank", "lora_alpha", "lora_dropout");
    const std::string names = file_.has("lora_target") ? targets("lora_target") : "all";
    say("lora-targets", names == "all" ? "all-linear" : names, "lora_target");
    if (!file_.has("lora_rank")) note(fmt::format("finetuning_type is lora, of rank {}", rank));
    further("additional_target", "use_dora");
    saved_modules();
  }

  // model/adapter.py, _setup_lora_tuning.
  void saved_modules() const {
    const bool saves = file_.is_set("additional_target");
    if (resizes_ && !saves)
      refuse_key(file_, "resize_vocab",
                 "with adapters LLaMA-Factory then trains copies of the embedding and of the head, "
                 "which are modelled where additional_target names them and pure_bf16 is set");
    if (saves && !flag("pure_bf16", false))
      refuse_key(file_, "additional_target",
                 "LLaMA-Factory trains these modules in fp32, between layers in another dtype; "
                 "only pure_bf16, which leaves them as they are, is modelled");
  }

  // model/loader.py loads weights as the checkpoint has them; model/adapter.py, init_adapter:
  // what is trained becomes fp32, unless pure_bf16 says otherwise. DeepSpeed has masters instead.
  // PEFT makes adapters fp32 before that, pure_bf16 or not (get_peft_model,
  // autocast_adapter_dtype).
  void precision() {
    const bool bf16 = flag("bf16", false), fp16 = flag("fp16", false),
               pure = flag("pure_bf16", false);
    if (bf16 && fp16) file_.refuse("bf16", "only one of bf16 and fp16");
    if (!bf16 && !fp16 && !pure) {
      if (lora_) file_.refuse("bf16", "bf16, fp16 or pure_bf16 with finetuning_type lora");
      return say("precision", "fp32", "bf16");
    }
    if (pure && !bf16) return state("precision", "bf16", "pure_bf16");
    state("precision", bf16 ? "bf16-mixed" : "fp16-mixed", bf16 ? "bf16" : "fp16");
    dtype_ = bf16 ? "bf16" : "fp16";
    if (file_.is_set("deepspeed")) return;
    const char* key = pure ? "pure_bf16" : "finetuning_type";
    out_.settings.push_back({"param-dtype", pure || lora_ ? dtype_ : "fp32", key, false});
    if (lora_)
      note(fmt::format("weights are loaded in the checkpoint's dtype: planned is {}", dtype_));
  }

  // model/model_utils/checkpointing.py, prepare_model_for_training.
  void checkpoints() {
    const bool off = flag("disable_gradient_checkpointing", false);
    say("recompute", off && !flag("gradient_checkpointing", false) ? "none" : "full",
        "disable_gradient_checkpointing");
    if (off) return;
    say("use-reentrant", flag("use_reentrant_gc", true) ? "yes" : "no", "use_reentrant_gc");
  }

  void kernels() {
    compile();
    if (flag("use_unsloth", false)) state("kernels", "unsloth", "use_unsloth");
    for (const char* key : {"enable_liger_kernel", "use_liger_kernel"})
      if (flag(key, false)) return state("kernels", "liger", key), attend();
    attend();
  }

  // model/model_utils/attention.py: "auto" is what Transformers takes.
  void attend() {
    const std::string name = file_.text("flash_attn", "auto");
    if (name == "auto") return;
    attention("flash_attn", name == "fa2"        ? "flash_attention_2"
                            : name == "fa3"      ? "flash_attention_3"
                            : name == "disabled" ? "eager"
                                                 : name);
  }

  // model/model_utils/quantization.py, configure_quantization.
  void quantization() {
    if (!file_.is_set("quantization_bit")) return;
    if (!lora_) file_.refuse("quantization_bit", "finetuning_type lora beside it");
    // "bitsandbytes" until 0.9.2
    if (file_.has("quantization_method") && !file_.is_text("quantization_method", "bnb") &&
        !file_.is_text("quantization_method", "bitsandbytes"))
      refuse_key(file_, "quantization_method", "only bnb is modelled");
    const std::int64_t bits = file_.count("quantization_bit", 4);
    // Nothing calls PEFT's prepare_model_for_kbit_training.
    state("kbit-prep", "no", "quantization_bit");
    if (bits == 8) return state("quantize", "int8", "quantization_bit");
    if (bits != 4) file_.refuse("quantization_bit", "4 or 8");
    const std::string kind = file_.text("quantization_type", "nf4");
    if (kind != "nf4" && kind != "fp4") file_.refuse("quantization_type", "nf4 or fp4");
    const bool nested = flag("double_quantization", true);
    if (nested && kind == "fp4")
      refuse_key(file_, "quantization_type",
                 "with double_quantization, its default, only nf4 is modelled");
    state("quantize", nested ? "nf4-dq" : kind, "quantization_bit");
    state("quant-storage", dtype_, "quantization_bit");
  }

  bool lora_ = false, resizes_ = false;
  std::string dtype_ = "bf16";
};

}  // namespace

FileSettings read_llamafactory_config(std::string_view text, const std::string& source) {
  const Config file = Config::parse(json_from_json_or_yaml(std::string(text), source), source);
  return Reader(file).read();
}

}  // namespace plimsoll::models
