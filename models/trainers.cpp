#include "models/trainers.h"

#include <algorithm>
#include <array>

namespace plimsoll::models {

namespace {

// What all of torchtitan's configurations of Llama 3 train with.
constexpr TrainerDefault kTitan202412[] = {
    {"model-code", "torchtitan@2024-12", "torchtitan/models/llama/model.py"},
    {"zero", "3", "train_configs/llama3_8b.toml, training.data_parallel_shard_degree"},
    {"precision", "bf16-mixed", "torchtitan/config_manager.py, training.mixed_precision_param"},
    {"grad-dtype", "fp32", "torchtitan/config_manager.py, training.mixed_precision_reduce"},
    {"optimizer", "adamw", "torchtitan/config_manager.py, optimizer.name"},
    {"optimizer-impl", "foreach", "torchtitan/config_manager.py, optimizer.fused"},
    {"recompute", "ops:torchtitan", "train_configs/llama3_8b.toml, activation_checkpoint"}};

constexpr TrainerDefault kTitan022[] = {
    {"model-code", "torchtitan@0.2.2", "torchtitan/models/llama3/model/model.py"},
    {"zero", "3", "torchtitan/config/job_config.py, parallelism.data_parallel_shard_degree"},
    {"precision", "bf16-mixed", "torchtitan/config/job_config.py, training.mixed_precision_param"},
    {"grad-dtype", "fp32", "torchtitan/config/job_config.py, training.mixed_precision_reduce"},
    {"optimizer", "adamw", "torchtitan/config/job_config.py, optimizer.name"},
    {"optimizer-impl", "fused", "torchtitan/config/job_config.py, optimizer.implementation"},
    {"recompute", "ops:torchtitan",
     "torchtitan/models/llama3/train_configs/llama3_8b.toml, activation_checkpoint"}};

// What both kinds of its recipes say in every configuration of Llama 3; batch and checkpoints
// differ.
constexpr TrainerDefault kTune061[] = {
    {"model-code", "torchtune@0.6.1", "torchtune/modules/transformer.py"},
    {"zero", "3", "recipes/full_finetune_distributed.py, shard_model"},
    {"precision", "bf16", "recipes/configs/llama3_1/8B_full.yaml, dtype"},
    {"adapter-dtype", "bf16", "recipes/lora_finetune_distributed.py, set_default_dtype"},
    {"optimizer", "adamw", "recipes/configs/llama3_1/8B_full.yaml, optimizer"},
    {"optimizer-impl", "fused", "recipes/configs/llama3_1/8B_full.yaml, optimizer.fused"},
    {"micro-batch", "2", "recipes/configs/llama3_1/8B_full.yaml, batch_size"},
    {"loss", "chunked", "recipes/configs/llama3_1/8B_full.yaml, loss"},
    {"recompute", "full",
     "recipes/configs/llama3_1/8B_full.yaml, enable_activation_checkpointing"}};

constexpr TrainerDefault kTuneSingle061[] = {
    {"model-code", "torchtune@0.6.1", "torchtune/modules/transformer.py"},
    {"precision", "bf16", "recipes/configs/llama3_1/8B_full_single_device.yaml, dtype"},
    {"adapter-dtype", "bf16", "recipes/lora_finetune_single_device.py, set_default_dtype"},
    {"micro-batch", "2", "recipes/configs/llama3_1/8B_full_single_device.yaml, batch_size"},
    {"loss", "chunked", "recipes/configs/llama3_1/8B_full_single_device.yaml, loss"},
    {"recompute", "full",
     "recipes/configs/llama3_1/8B_full_single_device.yaml, enable_activation_checkpointing"}};

// `litgpt finetune_lora` and finetune_full with --precision bf16-true, as config_hub/finetune says.
constexpr TrainerDefault kLitgpt0513[] = {
    {"model-code", "litgpt@0.5.13", "litgpt/model.py"},
    {"precision", "bf16", "config_hub/finetune/llama-3-8b/lora.yaml, precision: bf16-true"},
    {"adapter-dtype", "bf16", "lightning/fabric/plugins/precision/half.py, module_init_context"},
    {"optimizer", "adamw", "litgpt/finetune/lora.py, optimizer"},
    {"optimizer-impl", "foreach", "litgpt/utils.py, instantiate_torch_optimizer"},
    {"micro-batch", "1", "litgpt/finetune/lora.py, train.micro_batch_size"},
    {"loss", "chunked", "litgpt/finetune/lora.py, lm_head_chunk_size"},
    {"recompute", "none", "litgpt/finetune/lora.py, setup: strategy"}};

constexpr TrainerDefault kLitgptFull0513[] = {
    {"model-code", "litgpt@0.5.13", "litgpt/model.py"},
    {"precision", "bf16", "config_hub/finetune/llama-3.2-1B/full.yaml, precision: bf16-true"},
    {"optimizer", "adamw", "litgpt/finetune/full.py, optimizer"},
    {"optimizer-impl", "foreach", "litgpt/utils.py, instantiate_torch_optimizer"},
    {"micro-batch", "1", "litgpt/finetune/full.py, train.micro_batch_size"},
    {"recompute", "none", "litgpt/finetune/full.py, setup: strategy"}};

// The same of 2024, whose pyproject.toml asks for bitsandbytes 0.42.0. Where it says how it steps
// and what a micro-batch is.
struct LitgptSources {
  std::string_view code, torch, optimizer, implementation, micro_batch;
};
constexpr std::array<TrainerDefault, 10> litgpt_of_2024(const LitgptSources& of) {
  return {
      {{"model-code", of.code, "litgpt/model.py"},
       {"torch-version", "2.4.1", of.torch},
       {"precision", "bf16", "config_hub/finetune/llama-3-8b/lora.yaml, precision: bf16-true"},
       {"adapter-dtype", "bf16", "lightning/fabric/plugins/precision/half.py, module_init_context"},
       {"optimizer", "adamw", of.optimizer},
       {"optimizer-impl", "foreach", of.implementation},
       {"micro-batch", "1", of.micro_batch},
       {"loss", "chunked", "litgpt/finetune/lora.py, lm_head_chunk_size"},
       {"recompute", "none", "litgpt/finetune/lora.py, setup: strategy"},
       {"bitsandbytes-version", "0.42", "pyproject.toml, all", {}, TrainerBase::packed}}};
}
constexpr std::array<TrainerDefault, 7> litgpt_full_of_2024(const LitgptSources& of,
                                                            std::string_view precision) {
  return {{{"model-code", of.code, "litgpt/model.py"},
           {"torch-version", "2.4.1", of.torch},
           {"precision", "bf16", precision},
           {"optimizer", "adamw", of.optimizer},
           {"optimizer-impl", "foreach", of.implementation},
           {"micro-batch", "1", of.micro_batch},
           {"recompute", "none", "litgpt/finetune/full.py, setup: strategy"}}};
}
constexpr std::string_view kTorchOf2024 = "pyproject.toml, torch>=2.2.0: of September 2024",
                           kOldestTorch =
                               "pyproject.toml, torch>=2.2.0: the oldest that is modelled";
constexpr auto kLitgpt0413 =
    litgpt_of_2024({"litgpt@0.4.13", kTorchOf2024, "litgpt/finetune/lora.py, optimizer",
                    "litgpt/utils.py, instantiate_torch_optimizer",
                    "litgpt/finetune/lora.py, train.micro_batch_size"});
constexpr auto kLitgpt030 = litgpt_of_2024(
    {"litgpt@0.3.0", kOldestTorch, "litgpt/finetune/lora.py, main: optimizer_cls",
     "litgpt/finetune/lora.py, main: optimizer_cls", "litgpt/finetune/lora.py, setup: train"});
constexpr auto kLitgptFull0413 =
    litgpt_full_of_2024({"litgpt@0.4.13", kTorchOf2024, "litgpt/finetune/full.py, optimizer",
                         "litgpt/utils.py, instantiate_torch_optimizer",
                         "litgpt/finetune/full.py, train.micro_batch_size"},
                        "config_hub/finetune/llama-3.2-1B/full.yaml, precision: bf16-true");
constexpr auto kLitgptFull030 =
    litgpt_full_of_2024({"litgpt@0.3.0", kOldestTorch, "litgpt/finetune/full.py, main",
                         "litgpt/finetune/full.py, main", "litgpt/finetune/full.py, setup: train"},
                        "config_hub/finetune/tiny-llama/full.yaml, precision: bf16-true");

constexpr TrainerDefault kTransformers517[] = {
    {"transformers-version", "5.17", "setup.py"},
    {"precision", "fp32", "src/transformers/training_args.py, bf16 and fp16"},
    {"optimizer", "adamw", "src/transformers/training_args.py, optim"},
    {"optimizer-impl", "fused", "src/transformers/training_args.py, optim"},
    {"micro-batch", "8", "src/transformers/training_args.py, per_device_train_batch_size"},
    {"recompute", "none", "src/transformers/training_args.py, gradient_checkpointing"}};

constexpr TrainerDefault kAxolotl019[] = {
    {"precision", "bf16-mixed", "src/axolotl/utils/schemas/config.py, bf16"},
    {"param-dtype", "bf16", "src/axolotl/utils/config/__init__.py, resolve_dtype"},
    {"optimizer", "adamw", "src/axolotl/utils/schemas/training.py, optimizer"},
    {"optimizer-impl", "fused", "src/axolotl/utils/schemas/training.py, optimizer"},
    {"micro-batch", "1", "src/axolotl/utils/schemas/training.py, micro_batch_size"},
    {"grad-accum", "1", "src/axolotl/utils/schemas/training.py, gradient_accumulation_steps"},
    {"seq-len", "512", "src/axolotl/utils/schemas/config.py, sequence_len"},
    {"recompute", "none", "src/axolotl/utils/schemas/config.py, gradient_checkpointing"}};

constexpr TrainerDefault kLlamaFactory095[] = {
    {"optimizer", "adamw", "transformers, training_args.py, optim"},
    {"optimizer-impl", "fused", "transformers, training_args.py, optim"},
    {"micro-batch", "8", "transformers, training_args.py, per_device_train_batch_size"},
    {"seq-len", "2048", "src/llamafactory/hparams/data_args.py, cutoff_len"},
    {"recompute", "full", "src/llamafactory/hparams/model_args.py, disable_gradient_checkpointing"},
    {"use-reentrant", "yes", "src/llamafactory/hparams/model_args.py, use_reentrant_gc"}};

constexpr TrainerDefault kSwift46[] = {
    {"precision", "bf16-mixed", "swift/arguments/base_args/model_args.py, torch_dtype"},
    {"param-dtype", "bf16", "swift/arguments/base_args/model_args.py, torch_dtype"},
    {"optimizer", "adamw", "transformers, training_args.py, optim"},
    {"optimizer-impl", "fused", "transformers, training_args.py, optim"},
    {"micro-batch", "1", "swift/trainers/arguments.py, per_device_train_batch_size"},
    {"recompute", "full", "swift/trainers/arguments.py, gradient_checkpointing"}};

// SFTTrainer is Trainer; SFTConfig sets some of TrainingArguments otherwise.
constexpr TrainerDefault kTrl029[] = {
    {"transformers-version", "5.17", "trl, METADATA, Requires-Dist: transformers>=4.56.2"},
    {"precision", "bf16-mixed", "trl/trainer/base_config.py, bf16 and __post_init__"},
    {"param-dtype", "fp32", "trl/trainer/utils.py, create_model_from_path: dtype"},
    {"optimizer", "adamw", "transformers, training_args.py, optim"},
    {"optimizer-impl", "fused", "transformers, training_args.py, optim"},
    {"micro-batch", "8", "transformers, training_args.py, per_device_train_batch_size"},
    {"grad-accum", "1", "transformers, training_args.py, gradient_accumulation_steps"},
    {"seq-len", "1024", "trl/trainer/sft_config.py, max_length"},
    {"recompute", "full", "trl/trainer/base_config.py, gradient_checkpointing"},
    {"kbit-prep", "no", "trl/trainer/sft_trainer.py, __init__", {}, TrainerBase::packed},
    {"adapter-dtype", "bf16", "trl/trainer/sft_trainer.py, __init__", {}, TrainerBase::packed}};

template <std::size_t N>
constexpr std::array<TrainerDefault, N + 1> with(const TrainerDefault (&before)[N],
                                                 const TrainerDefault& one) {
  std::array<TrainerDefault, N + 1> all{};
  std::ranges::copy(before, all.begin());
  all.back() = one;
  return all;
}
constexpr auto kTrl116 =
    with(kTrl029, {"loss", "tiled", "trl/trainer/sft_trainer.py, __init__: add_fused_lm_head"});

constexpr TrainerDefault kTrl024[] = {
    {"transformers-version", "4.57", "trl, METADATA, Requires-Dist: transformers>=4.56.1"},
    {"precision", "bf16-mixed", "trl/trainer/sft_config.py, bf16 and __post_init__"},
    {"param-dtype", "fp32", "trl/trainer/utils.py, create_model_from_path: dtype is not given"},
    {"optimizer", "adamw", "transformers, training_args.py, optim"},
    {"optimizer-impl", "fused", "transformers, training_args.py, default_optim (torch 2.8 on)"},
    {"micro-batch", "8", "transformers, training_args.py, per_device_train_batch_size"},
    {"grad-accum", "1", "transformers, training_args.py, gradient_accumulation_steps"},
    {"seq-len", "1024", "trl/trainer/sft_config.py, max_length"},
    {"recompute", "full", "trl/trainer/sft_config.py, gradient_checkpointing"},
    {"use-reentrant", "yes",
     "transformers, modeling_utils.py, gradient_checkpointing_enable: use_reentrant"},
    {"kbit-casting",
     "yes",
     "trl/models/utils.py, prepare_peft_model",
     {},
     TrainerBase::packed_in_4_bits_with_bf16}};

constexpr TrainerDefault kTrl012[] = {
    {"transformers-version", "4.46", "trl, METADATA, Requires-Dist: transformers<4.47.0"},
    {"precision", "fp32", "transformers, training_args.py, bf16 and fp16"},
    {"optimizer", "adamw", "transformers, training_args.py, optim"},
    {"optimizer-impl", "foreach", "transformers, training_args.py, default_optim"},
    {"micro-batch", "8", "transformers, training_args.py, per_device_train_batch_size"},
    {"grad-accum", "1", "transformers, training_args.py, gradient_accumulation_steps"},
    {"seq-len", "1024", "trl/trainer/sft_trainer.py, max_seq_length"},
    {"recompute", "none", "transformers, training_args.py, gradient_checkpointing"},
    {"kbit-casting",
     "yes",
     "trl/trainer/sft_trainer.py, __init__",
     {},
     TrainerBase::packed_in_4_bits_with_bf16}};

// FastLanguageModel.from_pretrained, get_peft_model, and SFTConfig as its rl.py writes it anew.
constexpr TrainerDefault kUnsloth202511[] = {
    {"transformers-version", "4.57.2", "unsloth, METADATA, Requires-Dist: transformers<=4.57.2"},
    {"kernels", "unsloth", "unsloth/models/llama.py, patch_peft_model"},
    {"attention", "flash-2", "unsloth/models/_utils.py, HAS_FLASH_ATTENTION", "xformers"},
    {"precision", "bf16-mixed", "unsloth/models/rl.py, mixed_precision", "fp16-mixed"},
    {"param-dtype", "bf16", "unsloth/models/llama.py, from_pretrained: dtype", "fp16"},
    {"lora-rank", "16", "unsloth/models/llama.py, get_peft_model: r"},
    {"lora-targets", "all-linear", "unsloth/models/llama.py, get_peft_model: target_modules"},
    {"optimizer", "adam8bit", "unsloth/models/rl.py, optim"},
    {"micro-batch", "4", "unsloth/models/rl.py, per_device_train_batch_size"},
    {"grad-accum", "2", "unsloth/models/rl.py, gradient_accumulation_steps"},
    {"seq-len", "2048", "unsloth/models/loader.py, from_pretrained: max_seq_length"},
    {"loss", "fused", "unsloth/models/llama.py, CausalLM_fast_forward"},
    {"recompute", "full", "unsloth/models/vision.py, for_training"},
    {"offload", "activations", "unsloth/models/llama.py, use_gradient_checkpointing"}};

constexpr std::string_view kTitanBeside =
    "Not planned: clipping's norms (a few bytes a parameter tensor). Batch and sequence length are "
    "the configuration's.";

constexpr std::string_view kTuneBeside =
    "Llama and Mistral, all parameters or adapters (--lora-targets "
    "q_proj,v_proj,o_proj,gate_proj,up_proj,down_proj is its lora_attn_modules and "
    "apply_lora_to_mlp). Batch, checkpoints and the optimizer are the configuration's. Not "
    "planned: packed rows (flex_attention), activation offloading, torchao's QLoRA.";
constexpr std::string_view kTuneSingleBeside =
    "full_finetune_single_device steps with --optimizer paged-adam8bit --optimizer-in-backward, "
    "lora_finetune_single_device with --optimizer-impl fused. As for torchtune: Llama and Mistral; "
    "not planned are packed rows (flex_attention), activation offloading, torchao's QLoRA.";

constexpr std::string_view kLitgptBeside =
    "Llama and Mistral on one GPU, with adapters (--lora-targets q_proj,v_proj is its lora_query "
    "and lora_value); a packed base (--quantize nf4 is bnb.nf4) is stepped with --optimizer "
    "paged-adamw. The sequence is the longest sample's. Not planned: its "
    "FSDP, adapters of the head, other families, cuDNN's workspace of the convolutions in which B "
    "is applied, validation and samples between steps.";

constexpr std::string_view kLitgptFullBeside =
    "Llama and Mistral on one GPU. The sequence is the longest sample's. Not planned: its FSDP, "
    "other families, validation and samples between steps.";

constexpr std::array kTrainers{
    Trainer{"axolotl", "0.19", "Axolotl's trainer, of a 16-bit checkpoint",
            "axolotl-ai-cloud/axolotl, release 0.19.0", kAxolotl019,
            "Planned is Trainer's step. Not planned: Axolotl's own kernels for adapters "
            "(lora_mlp_kernel and its kin). What a run says stands in its YAML: --axolotl FILE."},
    Trainer{"litgpt", "0.5.13", "LitGPT's finetune_lora on one GPU",
            "Lightning-AI/litgpt, release 0.5.13, with lightning 2.6.6", kLitgpt0513,
            kLitgptBeside},
    Trainer{"litgpt", "0.4.13", "LitGPT's finetune_lora on one GPU",
            "Lightning-AI/litgpt, release 0.4.13, with lightning 2.4.0", kLitgpt0413,
            kLitgptBeside},
    Trainer{"litgpt", "0.3.0", "LitGPT's finetune_lora on one GPU",
            "Lightning-AI/litgpt, release 0.3.0, with lightning 2.3.0.dev20240328", kLitgpt030,
            kLitgptBeside},
    Trainer{"litgpt-full", "0.5.13", "LitGPT's finetune_full on one GPU",
            "Lightning-AI/litgpt, release 0.5.13, with lightning 2.6.6", kLitgptFull0513,
            kLitgptFullBeside},
    Trainer{"litgpt-full", "0.4.13", "LitGPT's finetune_full on one GPU",
            "Lightning-AI/litgpt, release 0.4.13, with lightning 2.4.0", kLitgptFull0413,
            kLitgptFullBeside},
    Trainer{"litgpt-full", "0.3.0", "LitGPT's finetune_full on one GPU",
            "Lightning-AI/litgpt, release 0.3.0, with lightning 2.3.0.dev20240328", kLitgptFull030,
            kLitgptFullBeside},
    Trainer{"llamafactory", "0.9.5", "LLaMA-Factory's stages pt and sft",
            "hiyouga/LLaMA-Factory, release 0.9.5", kLlamaFactory095,
            "Planned is Trainer's step. It trains adapters of rank 8 unless finetuning_type says "
            "otherwise, and casts what it trains to fp32: --llamafactory FILE reads both."},
    Trainer{"ms-swift", "4.6", "ms-swift's pt and sft, of a bfloat16 checkpoint",
            "modelscope/ms-swift, release 4.6.0", kSwift46,
            "Planned is Trainer's step. It trains adapters of rank 8 unless tuner_type says "
            "otherwise, and accumulates to 16 sequences a step: --swift FILE reads both."},
    Trainer{"torchtitan", "0.2.2", "torchtitan's Llama 3 under FSDP2",
            "pytorch/torchtitan, release 0.2.2", kTitan022, kTitanBeside},
    Trainer{"torchtitan", "2024-12", "torchtitan's Llama 3 under FSDP2",
            "pytorch/torchtitan at commit 3f20451bc (26 December 2024)", kTitan202412,
            kTitanBeside},
    Trainer{"torchtune", "0.6.1", "torchtune's full and LoRA recipes under FSDP2",
            "pytorch/torchtune, release 0.6.1", kTune061, kTuneBeside},
    Trainer{"torchtune-single-device", "0.6.1", "torchtune's full and LoRA recipes on one GPU",
            "pytorch/torchtune, release 0.6.1", kTuneSingle061, kTuneSingleBeside},
    Trainer{"transformers", "5.17", "Trainer with its own TrainingArguments",
            "huggingface/transformers, release 5.17.0", kTransformers517,
            "What a script says stands in TrainingArguments: --training-args FILE."},
    Trainer{
        "trl", "1.16", "TRL's SFTTrainer with its own SFTConfig",
        "huggingface/trl, release 1.16.0, with Transformers 5.17", kTrl116,
        "Its head makes no logits of all tokens, but tiles (--loss tiled): planned on one GPU, "
        "under DDP, by DeepSpeed, and under FSDP2 where the head is not tied and no adapters are "
        "trained; --loss full plans the model's own loss. Rows as long as max_length, which it "
        "pads to a multiple of 128, unless --data says how long samples are: packing and "
        "padding_free are off until a script says otherwise. Not planned: evaluation."},
    Trainer{
        "trl", "0.29", "TRL's SFTTrainer with its own SFTConfig",
        "huggingface/trl, release 0.29.1, with Transformers 5.17", kTrl029,
        "Planned is Trainer's step. Rows as long as max_length, unless --data says how long "
        "samples are: packing and padding_free are off until a script says otherwise (--packing, "
        "--padding free). Not planned: what it measures on the logits behind the forward pass, "
        "as 0.24 does; evaluation."},
    Trainer{"trl", "0.24", "TRL's SFTTrainer with its own SFTConfig",
            "huggingface/trl, release 0.24.0, with Transformers 4.57.1", kTrl024,
            "Planned is Trainer's step, of batches as long as max_length. Not planned: what it "
            "measures on the logits behind the forward pass (entropy in pieces, and a copy of the "
            "logits for its token accuracy, which is gone before the backward pass)."},
    Trainer{"trl", "0.12", "TRL's SFTTrainer with its own SFTConfig",
            "huggingface/trl, release 0.12.2, with Transformers 4.46.3", kTrl012,
            "Planned is Trainer's step, of batches as long as max_seq_length."},
    Trainer{"unsloth", "2025.11", "Unsloth's FastLanguageModel with LoRA on one GPU",
            "unslothai/unsloth, release 2025.11.6, with unsloth_zoo 2025.11.6 and Transformers "
            "4.57.2",
            kUnsloth202511,
            "load_in_4bit, which is on of itself, is --quantize nf4-dq; use_gradient_checkpointing "
            "of True or False, which both recompute, --offload none. From Ampere on its "
            "flash_attn path is planned, before it xformers' in fp16. Not planned: packed rows, "
            "full fine-tuning, vision models, vLLM beside."}};

}  // namespace

std::span<const Trainer> trainers() {
  return kTrainers;
}

std::string_view name_of(TrainerBase base) {
  switch (base) {
    case TrainerBase::any:
      return "";
    case TrainerBase::packed:
      return "of a base that bitsandbytes packs";
    case TrainerBase::packed_in_4_bits_with_bf16:
      return "of a 4-bit base with bf16, not sharded";
  }
  return "";
}

const Trainer* find_trainer(std::string_view name) {
  const std::size_t at = name.find('@');
  const std::string_view version = at == name.npos ? "" : name.substr(at + 1);
  const auto* found = std::ranges::find_if(kTrainers, [&](const Trainer& trainer) {
    return trainer.name == name.substr(0, at) && (at == name.npos || trainer.version == version);
  });
  return found == kTrainers.end() ? nullptr : found;
}

}  // namespace plimsoll::models
