#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/base/utf8.h"
#include "models/trainer_config_reader.h"
#include "models/trainer_file.h"
#include "models/trainer_keys.h"
#include "models/yaml_reader.h"

namespace plimsoll::models {

namespace {

// utils/schemas/enums.py, LEGACY_ATTN_FLAG_TO_IMPL: in the order in which they are looked at.
constexpr std::array<std::pair<const char*, const char*>, 6> kOldAttention{
    {{"xformers_attention", "xformers"},
     {"sage_attention", "sage"},
     {"flex_attention", "flex_attention"},
     {"flash_attention", "flash_attention_2"},
     {"sdp_attention", "sdpa"},
     {"eager_attention", "eager"}}};
// CustomSupportedOptimizers: Axolotl's own, under a name that Trainer has, too.
constexpr std::array<std::string_view, 1> kOwnOptimizers{"muon"};
// Plugins that leave a training step as it is; Liger's is read.
constexpr std::array<std::string_view, 3> kIdlePlugins{"axolotl.integrations.lm_eval.LMEvalPlugin",
                                                       "axolotl.integrations.swanlab.SwanLabPlugin",
                                                       "axolotl.integrations.liger.LigerPlugin"};
constexpr std::array kLoraKernels{"lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel",
                                  "lora_embedding_kernel"};

class Reader : TrainerFile {
 public:
  explicit Reader(const Config& file) : TrainerFile(file, find_trainer("axolotl")) {}

  FileSettings read() {
    plugins();  // which have fields of their own
    sort_keys(axolotl_keys(), {}, "Axolotl 0.19");
    refuse_unmodelled_keys(file_, axolotl_keys());
    if (!file_.has("base_model")) file_.refuse("base_model", "a model's name or path");
    out_.model = file_.text("base_model", "");
    batch();
    precision();
    checkpoints();
    attention(attention_key_.c_str(), attention_);
    if (file_.has("optimizer")) steps();
    kernels();
    spread();
    adapters();
    if (file_.is_set("val_set_size") || file_.is_set("test_datasets"))
      note("val_set_size and test_datasets: evaluation is not planned");
    if (file_.is_set("resize_token_embeddings_to_32x"))
      note("resize_token_embeddings_to_32x: planned is the vocabulary of the model's config");
    others();
    return finished();
  }

 private:
  void batch() {
    sizes("micro_batch_size", "gradient_accumulation_steps");
    if (!file_.has("gradient_accumulation_steps") && file_.has("batch_size")) {
      // utils/config, normalize_config: of one GPU.
      const std::int64_t all = file_.count("batch_size", 1);
      const std::int64_t each = file_.count("micro_batch_size", 1);
      out_.settings.back() = {"grad-accum", std::to_string(std::max<std::int64_t>(1, all / each)),
                              "batch_size", false};
    }
    say("seq-len", std::to_string(file_.count("sequence_len", 512)), "sequence_len");
    if (flag("sample_packing", false))
      note(
          "sample_packing: planned are rows as long as sequence_len, whether they hold one sample "
          "or many");
  }

  // utils/config, resolve_dtype; core/builders/base.py, _configure_precision_settings.
  void precision() {
    if (file_.is_text("bf16", "full"))
      refuse_key(file_, "bf16", "only true, false and auto are modelled");
    const bool automatic = !file_.has("bf16") || file_.is_text("bf16", "auto");
    const bool fp16 = flag("fp16", false), bfloat16 = flag("bfloat16", false);
    const bool bf16 = automatic ? !fp16 : flag("bf16", false);
    const char* key = bf16 ? "bf16" : bfloat16 ? "bfloat16" : fp16 ? "fp16" : "float16";
    dtype_ = bf16 || bfloat16 ? "bf16" : fp16 || flag("float16", false) ? "fp16" : "fp32";
    const bool mixed = bf16 || bfloat16 || fp16;
    const bool chosen = automatic && bf16;  // by Axolotl
    out_.settings.push_back({"precision", mixed ? dtype_ + "-mixed" : dtype_, key, chosen});
    out_.settings.push_back({"param-dtype", dtype_, key, chosen});
  }

  // utils/config, normalize_config: reentrant where gradient_checkpointing_kwargs say nothing.
  void checkpoints() {
    if (file_.is_string("gradient_checkpointing"))
      refuse_key(file_, "gradient_checkpointing", "offloading activations is not modelled yet");
    const bool on = flag("gradient_checkpointing", false);
    say("recompute", on ? "full" : "none", "gradient_checkpointing");
    out_.settings.back().yields = !on;
    // utils/config, normalize_config: where a part is frozen Transformers' default is left alone.
    const bool silent =
        !file_.has("gradient_checkpointing_kwargs") && !file_.is_set("unfrozen_parameters");
    if (on && !reentrant()) state("use-reentrant", silent ? "yes" : "no", "gradient_checkpointing");
    frozen(on);
    attention_key_ = "attn_implementation";
    attention_ = file_.text("attn_implementation", "");
    for (const auto& [key, name] : kOldAttention) {
      if (!attention_.empty() || !file_.has(key) || !flag(key, false)) continue;
      attention_ = name;
      attention_key_ = key;
    }
    if (attention_ == "flex_attention")  // monkeypatch/attention/flex_attn.py
      refuse_key(file_, attention_key_,
                 "Axolotl has it compiled in a way of its own, which is not modelled yet");
  }

  // train.py, setup_model_and_tokenizer; utils/freeze.py, LayerNamePattern: regular expressions
  // from a name's start, in which a dot is a dot.
  void frozen(bool checkpoints) {
    const char* const key = "unfrozen_parameters";
    if (!file_.is_set(key)) return;
    if (file_.is_set("adapter")) refuse_key(file_, key, "beside adapters is not modelled yet");
    state("freeze", "*", key);
    bool head = false, table = false;
    for (const std::string& expression : names(key)) {
      std::string pattern = expression.substr(expression.starts_with('^') ? 1 : 0);
      const bool ends = pattern.ends_with('$');
      if (ends) pattern.pop_back();
      if (pattern.empty() || pattern.find_first_of("^$*+?()[]{}|\\") != std::string::npos)
        refuse_key(file_, key,
                   "'" + shortened(expression) +
                       "': only names and their starts are modelled from this file; --freeze and "
                       "--train take patterns");
      head = head || pattern.find("lm_head") != std::string::npos;
      table = table || pattern.find("embed_tokens") != std::string::npos;
      state("train", pattern + (ends ? "" : "*"), key);
    }
    if (head && !table && !checkpoints)
      refuse_key(file_, key,
                 "with lm_head in it Axolotl sends gradients down to the frozen embedding, which "
                 "without gradient_checkpointing is not modelled");
  }

  void steps() {
    for (const std::string_view own : kOwnOptimizers)
      if (file_.is_text("optimizer", own))
        refuse_key(file_, "optimizer", "is Axolotl's own, which is not modelled yet");
    optimizer("optimizer", "optim_args");
  }

  void kernels() {
    compile();
    liger();
  }

  void plugins() {
    for (const std::string& plugin : file_.texts("plugins", 100)) {
      if (std::ranges::find(kIdlePlugins, plugin) == kIdlePlugins.end())
        fail(ErrorKind::unsupported,
             fmt::format("{}: plugins: {} is not modelled yet", file_.source(), shortened(plugin)));
      liger_ = liger_ || plugin.ends_with(".LigerPlugin");
    }
  }

  void liger() {
    const char* gate = file_.has("liger_swiglu") ? "liger_swiglu" : "liger_glu_activation";
    const bool rope = flag("liger_rope", false), norm = flag("liger_rms_norm", false),
               mlp = flag(gate, false), fused = flag("liger_fused_linear_cross_entropy", false);
    if (!liger_) {
      if (rope || norm || mlp || fused) note("liger_…: not looked at without Liger's plugin");
      return;
    }
    if (flag("liger_cross_entropy", false))
      refuse_key(file_, "liger_cross_entropy", "only liger_fused_linear_cross_entropy is modelled");
    if (rope != norm || norm != mlp)
      refuse_key(file_, "plugins",
                 "of Liger's liger_rope, liger_rms_norm and liger_glu_activation all or none are "
                 "modelled");
    if (rope) state("kernels", "liger", "plugins");
    if (rope || fused) state("loss", fused ? "fused" : "full", "liger_fused_linear_cross_entropy");
  }

  void spread() {
    if (file_.is_set("fsdp_version") && file_.is_set("fsdp_config")) {
      const auto config = file_.section("fsdp_config");
      if (config && (config->has("fsdp_version") || config->has("version")))
        file_.refuse("fsdp_version", "one of it and of fsdp_config's");
    }
    std::int64_t version = file_.count("fsdp_version", 1);
    if (version > 2) file_.refuse("fsdp_version", "1 or 2");
    sharding(static_cast<int>(version));
    for (FileSetting& setting : out_.settings)
      if (setting.option == "fsdp-version" && file_.has("fsdp_version"))
        setting = {"fsdp-version", std::to_string(version), "fsdp_version", false};
    for (const auto& [key, option] :
         {std::pair{"tensor_parallel_size", "tp"}, std::pair{"context_parallel_size", "cp"},
          std::pair{"sequence_parallel_degree", "cp"}})
      if (file_.optional_count(key, 1) > 1)
        state(option, std::to_string(file_.optional_count(key, 1)), key);
    if (file_.optional_count("dp_replicate_size", 1) > 1) {
      if (!file_.has("dp_shard_size")) file_.refuse("dp_replicate_size", "dp_shard_size beside it");
      state("shard-group", std::to_string(file_.count("dp_shard_size", 1)), "dp_shard_size");
    }
    // loaders/model.py, _configure_embedding_dtypes.
    const bool casts = file_.is_set("adapter") || file_.is_set("fsdp") ||
                       file_.is_set("fsdp_config") || file_.is_set("deepspeed") ||
                       dtype_ == "fp32" || attention_ == "flash_attention_2";
    if (!casts)
      fail(ErrorKind::unsupported,
           fmt::format("{}: attn_implementation is {}: Axolotl then keeps embeddings and norms in "
                       "fp32 beside {} weights, which is not modelled (flash_attention_2 is)",
                       file_.source(), attention_.empty() ? "not there" : attention_, dtype_));
  }

  void adapters() {
    const std::string adapter = file_.text("adapter", "");
    const bool four = flag("load_in_4bit", false), eight = flag("load_in_8bit", false);
    if (adapter.empty()) {
      if (four || eight)
        file_.refuse(four ? "load_in_4bit" : "load_in_8bit", "an adapter beside it");
      return;
    }
    if (adapter != "lora" && adapter != "qlora")
      refuse_key(file_, "adapter", "only lora and qlora are modelled");
    for (const char* key : {"lora_r", "lora_alpha"})
      if (!file_.has(key)) file_.refuse(key, "a number, as adapter needs it,");
    low_rank("lora_r", "lora_alpha", "lora_dropout");
    modules();
    further("lora_modules_to_save", "peft_use_dora");
    lora_kernels();
    if (file_.has("peft_autocast_adapter_dtype") && !flag("peft_autocast_adapter_dtype", true))
      state("adapter-dtype", dtype_, "peft_autocast_adapter_dtype");
    if (adapter == "qlora" && !four) file_.refuse("load_in_4bit", "true with adapter qlora");
    if (adapter == "lora" && four)
      note("load_in_4bit: with adapter lora, not qlora, Axolotl leaves the base in 16 bits");
    if (eight)
      packed("int8", "load_in_8bit");
    else if (adapter == "qlora")
      packed("nf4-dq", "load_in_4bit");
  }

  void modules() {
    const std::string names = targets("lora_target_modules");
    if (flag("lora_target_linear", false) || names == "all-linear")
      state("lora-targets", "all-linear", "lora_target_linear");
    else if (!names.empty())
      state("lora-targets", names, "lora_target_modules");
    else
      file_.refuse("lora_target_modules", "names of modules, or lora_target_linear,");
  }

  // utils/schemas/config.py, check_auto_enable_lora_kernels.
  void lora_kernels() {
    bool said = false;
    for (const char* key : kLoraKernels) {
      said = said || file_.has(key);
      if (flag(key, false))
        refuse_key(file_, key, "Axolotl's kernels for adapters are not modelled yet");
    }
    if (!said && !flag("trust_remote_code", false))
      note(
          "says nothing of lora_mlp_kernel, lora_qkv_kernel, lora_o_kernel and "
          "lora_embedding_kernel, which Axolotl then turns on in most cases: planned is without "
          "them, which keeps more activations");
  }

  // loaders/model.py, _set_quantization_config; everything else comes back to 16 bits
  // (_configure_embedding_dtypes).
  void packed(const char* kind, const char* key) {
    if (file_.is_set("bnb_config_kwargs"))
      refuse_key(file_, "bnb_config_kwargs", "is not modelled from this file");
    state("quantize", kind, key);
    if (key == std::string_view("load_in_4bit")) state("quant-storage", "bf16", key);
    state("kbit-prep", "no", key);
  }

  bool liger_ = false;
  std::string dtype_, attention_, attention_key_;
};

}  // namespace

FileSettings read_axolotl_config(std::string_view text, const std::string& source) {
  const Config file = Config::parse(json_from_json_or_yaml(std::string(text), source), source);
  return Reader(file).read();
}

}  // namespace plimsoll::models
