// Fields of TrainingArguments and of Accelerate's files, one a row: what each changes of the
// options, what it is noted for, or why it is refused.
#include <doctest/doctest.h>

#include "models/accelerate_config_reader.h"
#include "models/training_arguments_reader.h"
#include "tests/models/file_settings.h"

using namespace plimsoll;
using namespace plimsoll::tests;

namespace {
models::FileSettings arguments(const std::string& text) {
  return models::read_training_arguments(text, "t.yaml");
}
models::FileSettings accelerate(const std::string& text) {
  return models::read_accelerate_config(text, "c.yaml");
}
}  // namespace

TEST_CASE("TrainingArguments: batch, precision and checkpoints, field by field") {
  const char* const kTrl =
      " is of TRL, whose own config classes have other defaults (bf16, gradient_checkpointing, …) "
      "and whose trainers measure more: planned is Trainer's step with TrainingArguments' defaults";
  const auto trl = [&](const char* option, const char* key) {
    return option + ("; note: t.yaml: " + std::string(key)) + kTrl;
  };
  CHECK(changed(arguments, "output_dir: out\n", "max_seq_length: 300\nmax_length: 200\n") ==
        trl("seq-len=200", "max_length"));
  CHECK(changed(arguments, "output_dir: out\n", "max_seq_length: 300\n") ==
        trl("seq-len=300", "max_seq_length"));
  check_rows(
      arguments, "output_dir: out\n",
      {{"per_device_train_batch_size: 3\n", "micro-batch=3"},
       {"gradient_accumulation_steps: 5\n", "grad-accum=5"},
       {"auto_find_batch_size: true\n",
        "note: t.yaml: auto_find_batch_size: planned is the size that it begins with"},
       {"auto_find_batch_size: false\n", ""},
       {"block_size: 512\n", "seq-len=512"},
       {"model_max_length: 513\n", "seq-len=513"},
       {"bf16: false\n", "precision=fp32"},
       {"fp16: 'no'\n", "precision=fp32"},
       {"bf16: 0\n", "precision=fp32"},
       {"fp16: 'False'\n", "precision=fp32"},
       {"fp16: 'true'\n", "precision=fp16-mixed"},
       {"fp16: 'True'\n", "precision=fp16-mixed"},
       {"fp16: 'yes'\n", "precision=fp16-mixed"},
       {"bf16: 1\n", "precision=bf16-mixed"},
       {"bf16: 2\n", "bad: t.yaml: bf16 is 2, but true or false is needed"},
       {"dtype: float64\n",
        "bad: t.yaml: dtype is \"float64\", but bfloat16, float16, float32 or auto is needed"},
       {"gradient_checkpointing: true\n", "recompute=full"},
       {"gradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: false}\n",
        "recompute=full; use-reentrant=no"},
       {"gradient_checkpointing: true\ngradient_checkpointing_kwargs: {determinism_check: none}\n",
        "recompute=full"},
       {"gradient_checkpointing: true\ngradient_checkpointing_kwargs: {context_fn: x}\n",
        "unsupported: t.yaml: gradient_checkpointing_kwargs: context_fn is \"x\": is not modelled "
        "yet"},
       {"gradient_checkpointing: true\ngradient_checkpointing_kwargs: all\n",
        "bad: t.yaml: gradient_checkpointing_kwargs is \"all\", but an object is needed"},
       {"gradient_checkpointing_kwargs: {use_reentrant: true}\n", ""}});
  // Weights in the dtype that from_pretrained was told, with autocast and without.
  for (const auto& [dtype, ours] :
       {std::pair{"bfloat16", "bf16"}, std::pair{"float16", "fp16"}, std::pair{"float32", "fp32"},
        std::pair{"bf16", "bf16"}, std::pair{"fp16", "fp16"}, std::pair{"fp32", "fp32"},
        std::pair{"torch.bfloat16", "bf16"}})
    for (const char* key : {"dtype", "torch_dtype"}) {
      CAPTURE(dtype);
      const std::string text = std::string(key) + ": " + dtype + "\n";
      const Said alone = said(arguments(text)), mixed = said(arguments(text + "fp16: true\n"));
      CHECK(alone.at("precision") == ours);
      CHECK_FALSE(alone.contains("param-dtype"));
      CHECK(mixed.at("precision") == "fp16-mixed");
      CHECK(mixed.at("param-dtype") == ours);
      CHECK(notes(arguments(text)).empty());
    }
  CHECK(notes(arguments("torch_dtype: auto\nbf16: true\n")) ==
        "t.yaml: torch_dtype auto: planned are weights loaded in fp32; --param-dtype bf16 plans "
        "them in a 16-bit checkpoint's\n");
}

TEST_CASE("TrainingArguments: kernels, compilation, attention and optimizers, field by field") {
  check_rows(
      arguments, "output_dir: out\n",
      {{"activation_offloading: true\n", "offload=activations"},
       {"activation_offloading: false\n", ""},
       {"use_liger_kernel: true\n", "kernels=liger"},
       {"use_liger_kernel: false\nliger_kernel_config: {rope: true}\n", ""},
       {"use_liger_kernel: true\nliger_kernel_config: {rope: true}\n",
        "unsupported: t.yaml: liger_kernel_config is an object: a choice of kernels is not "
        "modelled yet"},
       {"attn_implementation: sdpa\n", "attention=flash"},
       {"attn_implementation: eager\n", "attention=eager"},
       {"attn_implementation: flash_attention_2\n", "attention=flash-2"},
       {"attn_implementation: flash_attention_3\n", "attention=flash-3"},
       {"attn_implementation: kernels-community/flash-attn2\n", "attention=flash-2"},
       {"attn_implementation: kernels-community/flash-attn3\n", "attention=flash-3"},
       {"attn_implementation: flex_attention\n", "attention=flex"},
       {"attn_implementation: paged_attention\n",
        "unsupported: t.yaml: attn_implementation is \"paged_attention\": only sdpa, eager, "
        "flex_attention, flash_attention_2 and flash_attention_3 are modelled"},
       {"torch_compile: true\n", "compile=model"},
       {"torch_compile_backend: inductor\n", "compile=model"},
       {"torch_compile_mode: default\n", "compile=model"},
       {"torch_compile: false\n", ""},
       {"optim: adamw_torch\n", "optimizer=adamw; optimizer-impl=foreach"},
       {"optim: adamw_torch_fused\n", "optimizer=adamw; optimizer-impl=fused"},
       {"optim: adamw_bnb_8bit\n", "optimizer=adam8bit; -optimizer-impl"},
       {"optim: sgd\n", "optimizer=sgd; -optimizer-impl"},
       {"optim: sgd\noptim_args: {momentum: 0.9}\n", "optimizer=momentum; -optimizer-impl"},
       {"optim: muon\n", "optimizer=muon; -optimizer-impl"},
       {"optim: galore_adamw\n",
        "optimizer=galore; -optimizer-impl; note: t.yaml: GaLore is planned for every matrix of a "
        "layer (optim_target_modules of attn and mlp)"},
       {"optim: galore_adamw_8bit_layerwise\noptim_args: update_proj_gap=50,rank=64,scale=2\n",
        "galore-rank=64; optimizer=galore8bit; optimizer-in-backward=; -optimizer-impl; note: "
        "t.yaml: GaLore is planned for every matrix of a layer (optim_target_modules of attn and "
        "mlp)"},
       {"optim: apollo_adamw\noptim_args: rank=32\n",
        "galore-rank=32; optimizer=apollo; -optimizer-impl; note: t.yaml: APOLLO is planned for "
        "every matrix of a layer (optim_target_modules of attn and mlp)"},
       {"optim: apollo_adamw\noptim_args: proj=svd\n",
        "unsupported: t.yaml: optim_args is \"proj=svd\": proj: only random is modelled"},
       {"optim: galore_adamw\noptim_args: proj_type=right\n",
        "unsupported: t.yaml: optim_args is \"proj_type=right\": proj_type: only std is modelled"},
       {"optim: galore_adamw\noptim_args: rank=all\n",
        "unsupported: t.yaml: optim_args is \"rank=all\": rank: a number is needed"},
       {"optim: galore_adamw\noptim_target_modules: all-linear\n",
        "unsupported: t.yaml: optim_target_modules is \"all-linear\": all-linear takes the head "
        "too; GaLore is modelled for the layers' matrices"},
       {"optim: rmsprop\noptim_args: centered=True\n",
        "unsupported: t.yaml: optim_args is \"centered=True\": centered with rmsprop is not "
        "modelled yet"},
       {"optim: stable_adamw\noptim_args: kahan_sum=True\n",
        "unsupported: t.yaml: optim_args is \"kahan_sum=True\": kahan_sum with stable_adamw is not "
        "modelled yet"}});
}

TEST_CASE("TrainingArguments: several ranks, FSDP and DeepSpeed, field by field") {
  check_rows(
      arguments, "output_dir: out\n",
      {{"ddp_bucket_cap_mb: 30\n", "bucket-cap-mb=30"},
       {"ddp_backend: nccl\n", ""},
       {"ddp_backend: gloo\n",
        "unsupported: t.yaml: ddp_backend is \"gloo\": only nccl is modelled"},
       {"ddp_static_graph: true\n",
        "unsupported: t.yaml: ddp_static_graph is true: is not modelled yet"},
       {"ddp_find_unused_parameters: true\n",
        "note: t.yaml: ddp_find_unused_parameters: planned as false"},
       {"ddp_find_unused_parameters: false\n", ""},
       {"use_cpu: true\n",
        "unsupported: t.yaml: use_cpu is true: training on a CPU is not modelled"},
       {"torch_empty_cache_steps: 4\n",
        "note: t.yaml: torch_empty_cache_steps: planned is a cache that is never emptied"},
       {"accelerator_config: {split_batches: true}\n",
        "unsupported: t.yaml: accelerator_config: split_batches is true: is not modelled yet"},
       {"accelerator_config: {split_batches: false}\n", ""},
       {"accelerator_config: '{\"split_batches\": true}'\n",
        "unsupported: t.yaml: accelerator_config: split_batches is true: is not modelled yet"},
       {"fsdp: full_shard\n", "fsdp-version=(2); stack=pytorch; zero=3"},
       {"fsdp: [shard_grad_op, auto_wrap]\n", "fsdp-version=(2); stack=pytorch; zero=2"},
       {"fsdp: auto_wrap\n", "fsdp-version=(2); stack=pytorch; zero=3"},
       {"fsdp: full_shard offload\n", "fsdp-version=(2); offload=params; stack=pytorch; zero=3"},
       {"fsdp: full_shard offload\nfsdp_config: {offload_params: true}\n",
        "fsdp-version=(2); offload=params; stack=pytorch; zero=3"},
       {"fsdp: hybrid_shard\n",
        "unsupported: t.yaml: fsdp is \"hybrid_shard\": is FSDP1's; full_shard and shard_grad_op "
        "are modelled"},
       {"fsdp: no_shard\n",
        "unsupported: t.yaml: fsdp is \"no_shard\": is FSDP1's; full_shard and shard_grad_op are "
        "modelled"},
       {"fsdp: offload\n",
        "bad: t.yaml: fsdp is \"offload\", but true, full_shard or shard_grad_op, and auto_wrap is "
        "needed"},
       {"fsdp: full_shard\nfsdp_config: {reshard_after_forward: false}\n",
        "fsdp-version=(2); stack=pytorch; zero=2"},
       {"fsdp: full_shard\ngradient_checkpointing: true\n",
        "fsdp-version=(2); recompute=full; stack=pytorch; zero=3; note: t.yaml: "
        "gradient_checkpointing under FSDP gathers each layer once more than "
        "activation_checkpointing of fsdp_config, which is planned"},
       {"fsdp: full_shard\ngradient_checkpointing: false\n",
        "fsdp-version=(2); recompute=none; stack=pytorch; zero=3"},
       {"parallelism_config: {tp_size: 2, cp_size: 4, dp_shard_size: 8, dp_replicate_size: 2}\n",
        "cp=4; shard-group=8; tp=2"},
       {"parallelism_config: {sp_size: 2, tp_size: 1, sp_seq_length_is_variable: true}\n", "cp=2"},
       {"parallelism_config: {parallelism_config_tp_size: 2, cp_backend: torch}\n", "tp=2"},
       {"parallelism_config: {tp: 2}\n", "bad: t.yaml: parallelism_config: unknown key 'tp'"}});
}

TEST_CASE("TrainingArguments: adapters and packed bases, field by field") {
  check_rows(
      arguments, "output_dir: out\n",
      {{"use_peft: false\nlora_r: 8\n", "note: t.yaml: lora_r is not looked at without use_peft"},
       {"use_dora: true\n", "note: t.yaml: use_dora is not looked at without use_peft"},
       // github.com/artidoro/qlora, haotian-liu/LLaVA, lm-sys/FastChat
       {"lora_r: 64\nbits: 4\n",
        "bad: t.yaml: lora_r is 64, but use_peft beside it (TRL's; false: no adapters are "
        "trained), "
        "or instead of it --lora-rank N is needed"},
       {"lora_enable: true\n",
        "bad: t.yaml: lora_enable is true, but use_peft beside it (TRL's; false: no adapters are "
        "trained), or instead of it --lora-rank N is needed"},
       {"q_lora: false\nbits: 16\n",
        "note: t.yaml: not of TrainingArguments, and not looked at: bits and q_lora"},
       {"bits: 4\n",
        "bad: t.yaml: bits is 4, but instead of it --quantize nf4-dq or nf4 is needed"},
       {"lora_alpha: 0\n", ""},
       // trl/trainer/model_config.py: 16, 32, 0.05
       {"use_peft: true\nlora_target_modules: all-linear\n",
        "lora-alpha=(32); lora-dropout=(0.05); lora-rank=(16); lora-targets=all-linear"},
       {"use_peft: true\nlora_target_modules: [q_proj, v_proj]\nlora_r: 4\nlora_alpha: 9\n"
        "lora_dropout: 0.25\nlora_modules_to_save: [lm_head]\nuse_dora: true\n",
        "lora-alpha=9; lora-dropout=0.25; lora-rank=4; lora-targets=q_proj,v_proj; "
        "modules-to-save=lm_head; use-dora=yes"},
       {"use_peft: true\n",
        "bad: t.yaml: lora_target_modules is missing, but all-linear or a list of names is needed"},
       {"use_peft: true\nlora_target_modules: all-linear\nlora_modules_to_save: ['.*head']\n",
        "unsupported: t.yaml: lora_modules_to_save is a list of 1: a pattern is not modelled from "
        "this file; --peft reads them"},
       {"use_peft: true\nlora_target_modules: all-linear\nlora_modules_to_save: ['']\n",
        "bad: t.yaml: lora_modules_to_save is a list of 1, but names of modules, none of them "
        "empty, is needed"},
       {"load_in_8bit: true\n", "quantize=int8"},
       {"load_in_4bit: true\n", "quantize=nf4"},
       {"load_in_4bit: true\nbnb_4bit_quant_type: fp4\n", "quantize=fp4"},
       {"load_in_4bit: true\nuse_bnb_nested_quant: true\n", "quantize=nf4-dq"},
       {"load_in_4bit: true\nuse_bnb_nested_quant: true\nbnb_4bit_quant_type: fp4\n",
        "unsupported: t.yaml: use_bnb_nested_quant is true: is modelled for nf4 only"},
       {"load_in_4bit: true\nbnb_4bit_quant_type: nf3\n",
        "bad: t.yaml: bnb_4bit_quant_type is \"nf3\", but nf4 or fp4 is needed"},
       {"load_in_4bit: true\nload_in_8bit: true\n",
        "bad: t.yaml: load_in_4bit is true, but only one of load_in_4bit and load_in_8bit is "
        "needed"}});
}

TEST_CASE("Accelerate: DeepSpeed's section and the machines, field by field") {
  const std::string deepspeed = "distributed_type: DEEPSPEED\n";
  check_rows(
      accelerate, deepspeed + "num_processes: 16\n",
      {{"num_machines: 2\n", "gpus-per-node=8"},
       {"num_machines: 1\n", ""},
       {"mixed_precision: FP8\n", "precision=fp8-mixed"},
       {"mixed_precision: FP8\nfp8_config: {backend: AO, enable_fsdp_float8_all_gather: false}\n",
        "fp8-all-gather=no; precision=fp8-mixed"},
       {"mixed_precision: FP8\nfp8_config: {backend: TE}\n",
        "unsupported: c.yaml: fp8_config: backend is \"TE\": only torchao's linears (AO) are "
        "modelled"},
       {"mixed_precision: fp32\n",
        "bad: c.yaml: mixed_precision is \"fp32\", but no, fp16, bf16 or fp8 is needed"},
       {"fp16: true\n", "precision=fp16-mixed"},
       {"deepspeed_config: {zero_stage: 0}\n", "zero=0"},
       {"deepspeed_config: {zero_stage: 3}\n", "zero=3"},
       {"deepspeed_config: {zero_stage: 4}\n",
        "bad: c.yaml: deepspeed_config: zero_stage is 4, but 0, 1, 2 or 3 is needed"},
       {"deepspeed_config: {gradient_accumulation_steps: auto}\n", ""},
       {"deepspeed_config: {offload_optimizer_device: cpu, offload_param_device: cpu}\n",
        "offload=optimizer,params"},
       {"deepspeed_config: {offload_param_device: cpu}\n", "offload=params"},
       {"deepspeed_config: {offload_optimizer_device: none}\n", ""},
       {"deepspeed_config: {offload_optimizer_device: nvme}\n",
        "offload=optimizer; offload-to=nvme"},
       {"deepspeed_config: {offload_optimizer_device: nvme, offload_param_device: cpu}\n",
        "unsupported: c.yaml: deepspeed_config: offload_param_device is \"cpu\": must be the other "
        "one; both are planned alike"},
       {"deepspeed_config: {offload_param_device: gpu}\n",
        "bad: c.yaml: deepspeed_config: offload_param_device is \"gpu\", but none, cpu or nvme is "
        "needed"},
       {"deepspeed_config: {zero_stge: 3}\n",
        "bad: c.yaml: deepspeed_config: unknown key 'zero_stge'; did you mean 'zero_stage'?"},
       {"deepspeed_config: {deepspeed_config_file: a.json}\nmixed_precision: bf16\n",
        "bad: c.yaml: mixed_precision is \"bf16\", but to stand in the deepspeed_config_file is "
        "needed"},
       {"fsdp_config: {fsdp_version: 2}\n",
        "note: c.yaml: fsdp_config is not looked at with distributed_type DEEPSPEED"},
       {"use_cpu: true\n",
        "unsupported: c.yaml: use_cpu is true: training on a CPU is not modelled"},
       {"downcast_bf16: 'no'\n", ""}});
  CHECK(said(accelerate("distributed_type: MULTI_GPU\nnum_processes: 8\n")).size() == 4);
  check_rows(
      accelerate, "distributed_type: 'NO'\n",
      {{"num_processes: 1\n", "gpus=1"},
       {"num_processes: 2\n",
        "bad: c.yaml: num_processes is 2, but 1 with distributed_type NO is needed"},
       {"deepspeed_config: {zero_stage: 3}\n",
        "bad: c.yaml: deepspeed_config is an object, but none beside distributed_type NO is "
        "needed"},
       {"dynamo_config: {backend: 'no'}\n", ""},
       {"dynamo_backend: INDUCTOR\n",
        "unsupported: c.yaml: dynamo_backend is \"INDUCTOR\": torch.compile is not modelled yet"}});
  CHECK(changed(accelerate, "distributed_type: MULTI_GPU\n", "num_machines: 2\n") ==
        "bad: c.yaml: num_processes is missing, but the number of ranks of all machines is needed");
}

TEST_CASE("Accelerate: FSDP's section, field by field") {
  const auto fsdp = [](const std::string& section) {
    return accelerate(
        "distributed_type: FSDP\nnum_processes: 4\nfsdp_config:\n"
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n" +
        section);
  };
  const std::string second = "  fsdp_version: 2\n";
  check_rows(fsdp, second,
             {{"  fsdp_reshard_after_forward: true\n", "zero=3"},
              {"  fsdp_reshard_after_forward: 'No'\n", "zero=2"},
              {"  fsdp_reshard_after_forward: '0'\n", "zero=2"},
              {"  fsdp_reshard_after_forward: 'YES'\n", "zero=3"},
              {"  fsdp_reshard_after_forward: '1'\n", "zero=3"},
              {"  fsdp_reshard_after_forward: FULL\n",
               "bad: c.yaml: fsdp_config: fsdp_reshard_after_forward is \"FULL\", but true or "
               "false is needed"},
              {"  fsdp_offload_params: true\n", "offload=params"},
              {"  fsdp_offload_params: true\n  fsdp_cpu_offload_pin_memory: false\n",
               "offload=params; offload-pin=no"},
              {"  fsdp_offload_params: true\n  fsdp_cpu_offload_pin_memory: true\n",
               "offload=params; offload-pin=yes"},
              {"  fsdp_activation_checkpointing: false\n", ""},
              {"  fsdp_transformer_layer_cls_to_wrap: GPT2Block\n", ""},
              {"  fsdp_transformer_layer_cls_to_wrap: [LlamaDecoderLayer]\n", ""},
              {"  fsdp_transformer_layer_cls_to_wrap: Embedding\n",
               "unsupported: c.yaml: fsdp_config: fsdp_transformer_layer_cls_to_wrap is "
               "\"Embedding\": only decoder "
               "layers are modelled as units"},
              {"  fsdp_transformer_layer_cls_to_wrap: [LlamaDecoderLayer, Embedding]\n",
               "unsupported: c.yaml: fsdp_config: fsdp_transformer_layer_cls_to_wrap is a list of "
               "2: only decoder "
               "layers are modelled as units"},
              {"  fsdp_colour: 1\n", "bad: c.yaml: fsdp_config: unknown key 'fsdp_colour'"}});
  const std::string first = "  fsdp_backward_prefetch: BACKWARD_PRE\n";
  check_rows(
      fsdp, first,
      {{"  fsdp_sharding_strategy: 1\n", "zero=3"},
       {"  fsdp_sharding_strategy: 2\n", "zero=2"},
       {"  fsdp_sharding_strategy: SHARD_GRAD_OP\n", "zero=2"},
       {"  fsdp_sharding_strategy: NO_SHARD\n",
        "unsupported: c.yaml: fsdp_config: fsdp_sharding_strategy is \"NO_SHARD\": FSDP that does "
        "not shard is "
        "not modelled; MULTI_GPU is"},
       {"  fsdp_sharding_strategy: HYBRID_SHARD_ZERO2\n", "shard-group=4; zero=2"},
       {"  fsdp_sharding_strategy: 4\n", "shard-group=4; zero=3"},
       {"  fsdp_sharding_strategy: 6\n",
        "bad: c.yaml: fsdp_config: fsdp_sharding_strategy is 6, but FULL_SHARD, SHARD_GRAD_OP, "
        "HYBRID_SHARD or "
        "HYBRID_SHARD_ZERO2 is needed"},
       {"  fsdp_reshard_after_forward: FULL_SHARD\n", ""},
       {"  fsdp_reshard_after_forward: false\n",
        "note: c.yaml: fsdp_config: with FSDP1 Accelerate does not look at "
        "fsdp_reshard_after_forward; "
        "FSDP_SHARDING_STRATEGY says how it shards (FULL_SHARD)"},
       {"  fsdp_forward_prefetch: true\n",
        "unsupported: c.yaml: fsdp_config: fsdp_forward_prefetch is true: is not modelled yet"},
       {"  fsdp_use_orig_params: false\n", "fsdp-use-orig-params=no"},
       {"  fsdp_limit_all_gathers: false\n",
        "unsupported: c.yaml: fsdp_config: fsdp_limit_all_gathers is false: is not modelled yet"},
       {"  fsdp_use_orig_params: true\n", ""}});
}
