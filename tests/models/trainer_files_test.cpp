// Configurations of Axolotl and LLaMA-Factory, as options. The files are those of the projects'
// examples, shortened.
#include <doctest/doctest.h>

#include <string>

#include "models/trainer_config_reader.h"
#include "tests/models/file_settings.h"

using namespace plimsoll;
using namespace plimsoll::tests;

namespace {
models::FileSettings axolotl(const std::string& text) {
  return models::read_axolotl_config(text, "a.yaml");
}
models::FileSettings factory(const std::string& text) {
  return models::read_llamafactory_config(text, "l.yaml");
}
std::string no_axolotl(const std::string& text, ErrorKind kind = ErrorKind::unsupported) {
  return refusal(axolotl, text, kind);
}
std::string no_factory(const std::string& text, ErrorKind kind = ErrorKind::unsupported) {
  return refusal(factory, text, kind);
}

// examples/llama-3/fft-8b.yaml
const std::string kFull = R"(base_model: NousResearch/Meta-Llama-3.1-8B
datasets:
  - {path: tatsu-lab/alpaca, type: alpaca}
val_set_size: 0.05
output_dir: ./outputs/out
sequence_len: 8192
sample_packing: true
wandb_project:
gradient_accumulation_steps: 8
micro_batch_size: 1
num_epochs: 1
optimizer: paged_adamw_8bit
learning_rate: 2e-5
bf16: auto
tf32: false
gradient_checkpointing: true
gradient_checkpointing_kwargs: {use_reentrant: false}
attn_implementation: flash_attention_2
special_tokens: {pad_token: <|end_of_text|>}
)";
// examples/llama-3/qlora.yml, with the adapters' kernels off
const std::string kQlora = R"(base_model: meta-llama/Llama-3.1-8B
load_in_8bit: false
load_in_4bit: true
adapter: qlora
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_linear: true
lora_mlp_kernel: false
sequence_len: 4096
micro_batch_size: 2
optimizer: paged_adamw_32bit
bf16: auto
gradient_checkpointing: true
flash_attention: true
)";
// examples/train_lora/qwen3_lora_sft.yaml of LLaMA-Factory
const std::string kFactoryLora = R"(model_name_or_path: Qwen/Qwen3-4B-Instruct-2507
trust_remote_code: true
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
dataset: identity,alpaca_en_demo
template: qwen3_nothink
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
lr_scheduler_type: cosine
bf16: true
resume_from_checkpoint: null
)";
}  // namespace

TEST_CASE("Axolotl's full fine-tuning: 16-bit weights under autocast, and what it says") {
  const auto file = axolotl(kFull);
  CHECK(file.model == "NousResearch/Meta-Llama-3.1-8B");
  CHECK(said(file) == Said{{"micro-batch", "1"},
                           {"grad-accum", "8"},
                           {"seq-len", "8192"},
                           {"precision", "(bf16-mixed)"},  // auto
                           {"param-dtype", "(bf16)"},
                           {"recompute", "full"},
                           {"use-reentrant", "no"},
                           {"attention", "flash-2"},
                           {"optimizer", "paged-adam8bit"}});
  CHECK(says(notes(file), "of no bearing on memory: datasets, "));
  CHECK(says(notes(file), "val_set_size and test_datasets: evaluation is not planned"));
  CHECK(says(notes(file), "sample_packing: planned are rows as long as sequence_len"));
  // Trainer has no such fields.
  CHECK(says(notes(axolotl(kFull + "my_own: 3\n")),
             "not of Axolotl 0.19, and not looked at: my_own"));
}

TEST_CASE("Axolotl's QLoRA packs twice, in bf16 storage, and keeps everything else in 16 bits") {
  Said expected{
      {"micro-batch", "2"},          {"grad-accum", "(1)"},        {"seq-len", "4096"},
      {"precision", "(bf16-mixed)"}, {"param-dtype", "(bf16)"},    {"recompute", "full"},
      {"use-reentrant", "yes"},  // without gradient_checkpointing_kwargs
      {"attention", "flash-2"},      {"optimizer", "paged-adamw"}, {"lora-rank", "32"},
      {"lora-alpha", "16"},          {"lora-dropout", "0.05"},     {"lora-targets", "all-linear"},
      {"quantize", "nf4-dq"},        {"quant-storage", "bf16"},    {"kbit-prep", "no"}};
  CHECK(said(axolotl(kQlora)) == expected);
  CHECK_FALSE(says(notes(axolotl(kQlora)), "lora_qkv_kernel"));
  // Nothing said of the kernels: Axolotl turns them on, and the plan says that it is without.
  std::string silent = kQlora;
  silent.replace(silent.find("lora_mlp_kernel"), 22, "");
  CHECK(says(notes(axolotl(silent)), "which Axolotl then turns on in most cases"));
  const auto more = said(
      axolotl(kQlora + "lora_modules_to_save: [embed_tokens, lm_head]\npeft_use_dora: true\n"));
  CHECK(more.at("modules-to-save") == "embed_tokens,lm_head");
  CHECK(more.at("use-dora") == "yes");
  CHECK_FALSE(said(axolotl(kQlora + "lora_modules_to_save: []\n")).contains("modules-to-save"));
  CHECK(said(axolotl(kQlora + "peft_autocast_adapter_dtype: false\n")).at("adapter-dtype") ==
        "bf16");
}

TEST_CASE("Axolotl's FSDP, DeepSpeed and Liger") {
  const std::string base = "base_model: m\nattn_implementation: flash_attention_2\n";
  const auto fsdp = said(axolotl(base + R"(fsdp_version: 2
fsdp_config:
  offload_params: true
  cpu_offload_pin_memory: false
  auto_wrap_policy: TRANSFORMER_BASED_WRAP
  transformer_layer_cls_to_wrap: LlamaDecoderLayer
  state_dict_type: FULL_STATE_DICT
  final_state_dict_type: FULL_STATE_DICT
  reshard_after_forward: true
)"));
  CHECK(fsdp.at("zero") == "3");
  CHECK(fsdp.at("fsdp-version") == "2");
  CHECK(fsdp.at("offload") == "params");
  CHECK(fsdp.at("offload-pin") == "no");
  // FSDP1 where no version is said.
  CHECK(says(no_axolotl(base + "fsdp: [full_shard]\n"), "FSDP1 is modelled with BACKWARD_PRE"));
  CHECK(said(axolotl(base + "deepspeed: deepspeed_configs/zero2.json\n")).at("deepspeed") ==
        "deepspeed_configs/zero2.json");
  const std::string liger = base + "plugins: [axolotl.integrations.liger.LigerPlugin]\n";
  const std::string all = "liger_rope: true\nliger_rms_norm: true\nliger_glu_activation: true\n";
  CHECK(said(axolotl(liger + all + "liger_fused_linear_cross_entropy: true\n")).at("kernels") ==
        "liger");
  CHECK(said(axolotl(liger + all)).at("loss") == "full");
  const auto loss_alone = said(axolotl(liger + "liger_fused_linear_cross_entropy: true\n"));
  CHECK(loss_alone.at("loss") == "fused");
  CHECK_FALSE(loss_alone.contains("kernels"));
  CHECK(says(no_axolotl(liger + "liger_rope: true\n"), "all or none are modelled"));
}

TEST_CASE("Axolotl's unfrozen parameters: all others are frozen, checkpoints are not reentrant") {
  const std::string base =
      "base_model: m\nattn_implementation: flash_attention_2\ngradient_checkpointing: true\n"
      "unfrozen_parameters:\n- ^lm_head.weight$\n";
  const auto two = said(axolotl(base + "- model.layers.31.mlp\n"));
  CHECK(two.at("freeze") == "*");
  CHECK(two.at("train") == "lm_head.weight model.layers.31.mlp*");
  CHECK(two.at("use-reentrant") == "no");
  const std::string lora = "adapter: lora\nlora_r: 8\nlora_alpha: 8\nlora_target_linear: true\n";
  CHECK(says(no_axolotl(base + lora), "unfrozen_parameters is a list of 1: beside adapters"));
}

TEST_CASE("what of Axolotl is not planned is refused by name") {
  const std::string base = "base_model: m\nattn_implementation: flash_attention_2\n";
  for (const char* line :
       {"rl: dpo", "activation_offloading: true", "gradient_checkpointing: offload", "fp8: true",
        "bf16: full", "optimizer: muon", "optimizer: adopt_adamw", "cut_cross_entropy: true",
        "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]",
        "adapter: llama-adapter", "unfrozen_parameters: [lm_head.weight]",
        "unfrozen_parameters: ['^model.embed_tokens.weight$[:32000]']",
        "unfrozen_parameters: ['layers.2[0-9]+.mlp']", "lisa_n_layers: 2", "neftune_noise_alpha: 5",
        "chunked_cross_entropy: true", "flex_attention: true"}) {
    CAPTURE(line);
    const std::string text = std::string_view(line).starts_with("flex") ? "base_model: m\n" : base;
    const std::string why = no_axolotl(text + line + "\n");
    CHECK(says(why, "a.yaml: "));
    CHECK(says(why, "model"));
  }
  // loaders/model.py: embeddings and norms in fp32, for flash attention is not there to want 16.
  CHECK(says(no_axolotl("base_model: m\n"), "keeps embeddings and norms in fp32"));
  CHECK(said(axolotl("base_model: m\nbf16: false\n")).at("precision") == "fp32");
  CHECK(says(no_axolotl(kQlora + "lora_qkv_kernel: true\n"), "lora_qkv_kernel is true"));
}

TEST_CASE("slips and contradictions in Axolotl's file are errors with the key") {
  const std::string base = "base_model: m\nattn_implementation: flash_attention_2\n";
  const auto no = [&](const char* line) { return no_axolotl(base + line + "\n", kBad); };
  CHECK(no("micro_batch_sizes: 2") ==
        "a.yaml: unknown key 'micro_batch_sizes'; did you mean 'micro_batch_size'?");
  CHECK(says(no("sequence_len: 0"), "sequence_len is 0"));
  CHECK(says(no("adapter: qlora\nlora_r: 8\nlora_alpha: 8\nlora_target_linear: true"),
             "load_in_4bit"));
  CHECK(says(no("load_in_4bit: true"), "an adapter beside it"));
  CHECK(says(no("adapter: lora\nlora_alpha: 8"), "lora_r"));
  CHECK(says(no("adapter: lora\nlora_r: 8\nlora_alpha: 8"), "lora_target_modules"));
  CHECK(says(no("deepspeed: a.json\nfsdp: [full_shard]"), "only one of fsdp and deepspeed"));
  CHECK(says(no("fsdp_version: 3"), "fsdp_version is 3"));
  CHECK(says(no_axolotl("micro_batch_size: 1\n", kBad), "base_model"));
  CHECK(says(no_axolotl("- 1\n", kBad), "a.yaml"));
}

TEST_CASE("LLaMA-Factory: adapters in fp32 over the checkpoint's dtype, checkpoints on") {
  const auto file = factory(kFactoryLora);
  CHECK(file.model == "Qwen/Qwen3-4B-Instruct-2507");
  CHECK(said(file) == Said{{"micro-batch", "1"},
                           {"grad-accum", "8"},
                           {"seq-len", "2048"},
                           {"lora-rank", "8"},
                           {"lora-alpha", "(16)"},  // twice the rank
                           {"lora-dropout", "(0)"},
                           {"lora-targets", "all-linear"},
                           {"precision", "bf16-mixed"},
                           {"param-dtype", "bf16"},
                           {"recompute", "(full)"},
                           {"use-reentrant", "(yes)"},
                           {"optimizer", "(adamw)"},
                           {"optimizer-impl", "(fused)"}});
  CHECK(says(notes(file), "weights are loaded in the checkpoint's dtype: planned is bf16"));
  const auto packed = said(factory(kFactoryLora + "quantization_bit: 4\n"));
  CHECK(packed.at("quantize") == "nf4-dq");
  CHECK(packed.at("quant-storage") == "bf16");
  CHECK(packed.at("kbit-prep") == "no");
}

TEST_CASE("LLaMA-Factory's modules beside adapters, where they keep the weights' dtype") {
  const std::string pure = kFactoryLora + "pure_bf16: true\n";
  // get_peft_model makes adapters fp32 whatever pure_bf16 says.
  CHECK_FALSE(said(factory(pure)).contains("adapter-dtype"));
  const auto two = said(factory(pure + "additional_target: embed_tokens, lm_head\n"));
  CHECK(two.at("modules-to-save") == "embed_tokens,lm_head");
  CHECK(two.at("param-dtype") == "bf16");
  CHECK(said(factory(pure + "resize_vocab: true\nadditional_target: lm_head\n"))
            .at("modules-to-save") == "lm_head");
  CHECK(said(factory(kFactoryLora + "use_dora: true\n")).at("use-dora") == "yes");
  CHECK_FALSE(said(factory(kFactoryLora + "use_dora: false\n")).contains("use-dora"));
  CHECK(says(no_factory(kFactoryLora + "additional_target: lm_head\n"), "in fp32"));
  CHECK(says(no_factory(pure + "resize_vocab: true\n"), "additional_target names them"));
  const std::string full = "model_name_or_path: m\nfinetuning_type: full\nbf16: true\n";
  CHECK(says(no_factory(full + "use_dora: true\n", kBad), "finetuning_type lora beside it"));
  const auto idle = factory(full + "additional_target: lm_head\nresize_vocab: true\n");
  CHECK(says(notes(idle), "additional_target is not looked at"));
  CHECK_FALSE(said(idle).contains("modules-to-save"));
}

TEST_CASE("LLaMA-Factory's full fine-tuning trains fp32 weights, unless pure_bf16 or DeepSpeed") {
  const std::string base =
      "model_name_or_path: m\nfinetuning_type: full\nper_device_train_batch_size: 1\n";
  const auto mixed = said(factory(base + "bf16: true\n"));
  CHECK(mixed.at("precision") == "bf16-mixed");
  CHECK(mixed.at("param-dtype") == "fp32");
  CHECK(said(factory(base + "pure_bf16: true\n")).at("precision") == "bf16");
  CHECK(said(factory(base + "pure_bf16: true\nbf16: true\n")).at("param-dtype") == "bf16");
  CHECK(said(factory(base)).at("precision") == "(fp32)");
  const auto deepspeed = said(factory(base + "bf16: true\ndeepspeed: ds_z3_config.json\n"));
  CHECK(deepspeed.at("deepspeed") == "ds_z3_config.json");
  CHECK_FALSE(deepspeed.contains("param-dtype"));
  CHECK(said(factory(base + "bf16: true\nflash_attn: fa2\n")).at("attention") == "flash-2");
  CHECK(said(factory(base + "bf16: true\nflash_attn: fa3\n")).at("attention") == "flash-3");
  CHECK(said(factory(base + "bf16: true\nflash_attn: disabled\n")).at("attention") == "eager");
  CHECK(said(factory(base + "bf16: true\nenable_liger_kernel: true\n")).at("kernels") == "liger");
  const auto none = said(factory(base + "bf16: true\ndisable_gradient_checkpointing: true\n"));
  CHECK(none.at("recompute") == "none");
}

TEST_CASE("what of LLaMA-Factory is not planned is refused by name") {
  const std::string base = "model_name_or_path: m\nbf16: true\n";
  for (const char* line :
       {"stage: dpo", "stage: rm", "finetuning_type: freeze", "finetuning_type: oft",
        "use_galore: true", "use_badam: true", "neat_packing: true", "resize_vocab: true",
        "upcast_layernorm: true", "adapter_name_or_path: saves/x", "use_muon: true",
        "additional_target: embed_tokens", "shift_attn: true",
        // examples/megatron/qwen3_moe_full.yaml
        "tensor_model_parallel_size: 1", "pipeline_model_parallel_size: 4",
        "recompute_granularity: full", "quantization_bit: 4\nquantization_method: hqq",
        "quantization_bit: 4\nquantization_type: fp4", "flash_attn: fa4"}) {
    CAPTURE(line);
    CHECK(says(no_factory(base + line + "\n"), "model"));
  }
  // examples/v1/train_lora/train_lora_sft.yaml
  CHECK(says(no_factory("model: Qwen/Qwen3-4B\ntrain_dataset: d.yaml\nmicro_batch_size: 1\n"),
             "files of LLaMA-Factory's v1 (USE_V1) are not read yet"));
  CHECK(says(no_factory(base + "cutof_len: 5\n", kBad), "did you mean 'cutoff_len'?"));
  CHECK(says(no_factory(base + "fp16: true\n", kBad), "only one of bf16 and fp16"));
  CHECK(says(no_factory("model_name_or_path: m\n", kBad), "finetuning_type lora"));
  CHECK(says(no_factory(base + "finetuning_type: full\nquantization_bit: 4\n", kBad),
             "finetuning_type lora beside it"));
  CHECK(says(no_factory("bf16: true\n", kBad), "model_name_or_path"));
}
