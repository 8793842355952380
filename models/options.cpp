#include "models/options.h"

#include <algorithm>
#include <span>

#include "models/run_names.h"

namespace plimsoll::models {

namespace {
// The names that a message lists; the first of them are modelled.
constexpr std::string_view kOffloadTo[] = {"cpu", "nvme", "managed"};
constexpr std::string_view kPadding[] = {"none", "free", "longest", "max"};
constexpr std::string_view kPacking[] = {"no", "wrapped", "bfd"};
constexpr std::string_view kModes[] = {"train", "inference"};
constexpr std::string_view kTasks[] = {"sft", "classification", "mlm",    "dpo",
                                       "kto", "orpo",           "reward", "grpo"};
constexpr std::string_view kPhases[] = {"step", "load", "merge"};
constexpr std::string_view kDeviceMaps[] = {"none", "auto"};
constexpr const char* kInference = "belongs to --mode inference, which is not modelled yet";

constexpr Option of_a_step(const char* name, const char* value, const char* group, const char* help,
                           const char* at) {
  return Option{name, value, group, help}.at(at).of_a_step();
}

constexpr Option of_adapters(const char* name, const char* value, const char* help,
                             const char* at) {
  return of_a_step(name, value, "Adapters", help, at);
}

constexpr Option kPlanOptions[] = {
    {"params", "N", "Model", "a bare parameter count (7.5e9, 7B) for MODEL: model states only"},
    Option{"assume", "TYPE", "Model",
           "read the config as this model_type, whatever it says (llama)"}
        .of_a_step(),
    of_a_step("dropout", "P", "Model", "of every dropout of the model: a rate, or config (config)",
              "model/config"),
    of_a_step("task", "NAME", "Model",
              "the head and its loss: sft; classification, of whole sequences; mlm, BERT's (the "
              "config's class)",
              "model/config")
        .one_of(kTasks, 3, "is not modelled yet"),

    {"gpu", "NAME", "Cluster", "see `plimsoll gpus` (the local GPU, else h100-sxm-80gb)"},
    Option{"gpus", "N", "Cluster", "world size (1)"}.at("strategy/world_size").written_anew(),
    Option{"gpus-per-node", "N", "Cluster", "(8)"}.written_anew().of_a_step(),
    {"gpu-memory", "SIZE", "Cluster", "80GB, 79.6GiB, bytes: what CUDA reports as total"},
    Option{"intra-node-bandwidth", "GB/S", "Cluster", "per GPU, one direction (the catalog's)"}
        .of_a_step(),
    Option{"inter-node-bandwidth", "GB/S", "Cluster",
           "per GPU, one direction (the vendor's servers')"}
        .of_a_step(),
    Option{"reserve", "SIZE", "Cluster", "kept free (0)"}.written_anew(),
    Option{"host-memory", "SIZE", "Cluster",
           "of a node, for what is offloaded: 256GiB (not judged)"}
        .of_a_step(),
    Option{"calibration", "FILE", "Cluster",
           "overheads as tools/evidence fit measured them (built in)"}
        .of_a_step(),

    Option{"stack", "NAME", "Stack", "plimsoll, pytorch, deepspeed, megatron (pytorch)"}
        .of_step_at("stack/name")
        .one_of(kNamesOf<Stack>, 3,
                "this stack is not modelled yet (pytorch, deepspeed and plimsoll are)")
        .fixing("stack")
        .written_anew(),
    Option{"device", "NAME", "Stack", "cuda, cpu (cuda; cpu only with plimsoll)"}
        .of_step_at("stack/device")
        .one_of(kNamesOf<Device>)
        .fixing("stack"),
    Option{"compile", "[REGION]", "Stack",
           "torch.compile of each block, or of the model (no; alone: block)"}
        .of_step_at("stack/compile")
        .alone_means("block")
        .one_of(kNamesOf<Compile>, 2,
                "a model compiled as one graph is not modelled yet (block is)")
        .fixing("stack"),
    Option{"kernels", "NAME", "Stack", "eager, liger, unsloth, fused (eager)"}
        .of_step_at("stack/kernels")
        .one_of(kNamesOf<Kernels>)
        .fixing("stack", "kernels"),
    Option{"torch-version", "V", "Stack", "2.4 to 2.11 (2.11)"}.at("stack/version").of_a_step(),
    Option{"allocator-conf", "TEXT", "Stack", "PYTORCH_CUDA_ALLOC_CONF, in PyTorch's own syntax"}
        .of_step_at("stack/allocator_conf")
        .fixing("stack"),
    Option{"hold-outputs", "", "Stack", "the loop keeps the model's outputs until after backward"}
        .of_step_at("stack/hold_outputs")
        .fixing("stack"),
    of_a_step("transformers-version", "V", "Stack", "4.45 to 5.23 (5.17)",
              "stack/transformers_version"),
    of_a_step("bitsandbytes-version", "V", "Stack", "0.41 to 0.50 (0.50.2)",
              "stack/bitsandbytes_version"),
    Option{
        "model-code", "NAME", "Stack",
        "transformers, torchtitan@2024-03, torchtitan@2024-12, torchtitan@0.2.2, "
        "torchtune@0.6.1, litgpt@0.3.0, litgpt@0.4.13, litgpt@0.5.13: whose forward (transformers)"}
        .of_step_at("stack/model_code")
        .one_of(kNamesOf<ModelCode>)
        .fixing("stack"),

    Option{"zero", "STAGE", "Data parallel", "0, 1, 2, 3 (0); on pytorch DDP, ZeRO optimizer, FSDP"}
        .at("strategy/zero")
        .fixing("zero")
        .written_anew(),
    of_a_step("fsdp-activation-checkpointing", "YES|NO", "Data parallel",
              "FSDP1: checkpoints inside its units (no)", "stack/fsdp_activation_checkpointing")
        .fixing("stack"),
    of_a_step("fsdp-sync-module-states", "YES|NO", "Data parallel",
              "FSDP1: rank 0 sends each unit as it is wrapped (no)",
              "stack/fsdp_sync_module_states")
        .fixing("stack"),
    of_a_step("fsdp-use-orig-params", "YES|NO", "Data parallel",
              "FSDP1: the optimizer steps original parameters (yes)", "stack/fsdp_use_orig_params")
        .fixing("stack"),
    Option{"fsdp-version", "V", "Data parallel", "1, 2 (2)"}
        .of_step_at("stack/fsdp_version")
        .fixing("stack", "zero"),
    Option{"shard-group", "N", "Data parallel", "hybrid sharding inside groups of N (all ranks)"}
        .at("strategy/shard_group")
        .fixing("shard-group")
        .written_anew(),
    Option{"reduce-bucket", "SIZE", "Data parallel",
           "plimsoll: bytes of one gradient bucket (25MiB)"}
        .of_step_at("strategy/ddp/bucket_cap_mb")
        .fixing("stack"),
    Option{"data-parallel", "KIND", "Data parallel",
           "ddp: a process for each GPU; dp: torch.nn.DataParallel, one process (ddp)"}
        .of_step_at("strategy/data_parallel")
        .one_of(kNamesOf<DataParallelKind>)
        .fixing("stack", "zero"),
    Option{"bucket-cap-mb", "MIB", "Data parallel", "DDP's bucket_cap_mb (25)"}
        .of_step_at("strategy/ddp/bucket_cap_mb")
        .fixing("stack", "zero"),
    Option{"gradient-as-bucket-view", "YES|NO", "Data parallel", "DDP's own knob (no)"}
        .of_step_at("strategy/ddp/bucket_view")
        .fixing("stack", "zero"),
    Option{"reduce-bucket-size", "N", "Data parallel", "deepspeed: elements of a bucket (5e8)"}
        .of_step_at("stack/deepspeed/reduce_bucket_size")
        .fixing("stack"),
    Option{"overlap-comm", "YES|NO", "Data parallel", "deepspeed: two buckets (yes with --zero 3)"}
        .of_step_at("stack/deepspeed/overlap_comm")
        .fixing("stack"),
    Option{"round-robin-gradients", "YES|NO", "Data parallel",
           "deepspeed --zero 1, 2: ranks own parameters in turn (no)"}
        .of_step_at("stack/deepspeed/round_robin_gradients")
        .fixing("stack", "zero"),
    of_a_step("sub-group-size", "N", "Data parallel",
              "deepspeed --zero 3: elements of one step (1e9)", "stack/deepspeed/sub_group_size"),
    of_a_step("stage3-prefetch-bucket-size", "N", "Data parallel", "deepspeed (5e7)",
              "stack/deepspeed/stage3_prefetch_bucket_size"),
    of_a_step("stage3-param-persistence-threshold", "N", "Data parallel", "deepspeed (1e5)",
              "stack/deepspeed/stage3_param_persistence_threshold"),
    of_a_step("stage3-max-live-parameters", "N", "Data parallel", "deepspeed (1e9)",
              "stack/deepspeed/stage3_max_live_parameters"),
    of_a_step("stage3-max-reuse-distance", "N", "Data parallel", "deepspeed (1e9)",
              "stack/deepspeed/stage3_max_reuse_distance"),
    Option{"prefetch", "N", "Data parallel", "units gathered ahead"}.never(
        "prefetch depths other than the stack's own are not modelled yet"),
    of_a_step("deterministic", "", "Data parallel",
              "plimsoll: all stages reduce at the same moments", "strategy/deterministic"),
    Option{"exchange", "NAME", "Data parallel", "plimsoll: nccl (GPUs), mpi or threads (the host)"}
        .of_step_at("stack/exchange")
        .one_of(kNamesOf<Exchange>),

    Option{"tp", "N", "Model parallel", "tensor parallel ranks, of torchtitan (1)"}
        .of_step_at("strategy/tp")
        .fixing("gpus", "shard-group"),
    Option{"sequence-parallel", "", "Model parallel", "shard what tensor parallelism replicates"}
        .never("torchtitan's --tp always does; Megatron's is not modelled yet")
        .at("strategy/sequence_parallel", "false"),
    Option{"pp", "N", "Model parallel", "pipeline stages (1)"}
        .at("strategy/pp")
        .only_one("pipeline parallelism"),
    Option{"pp-schedule", "NAME", "Model parallel", "gpipe, 1f1b, interleaved, zero-bubble"}
        .never("pipeline parallelism is not modelled yet")
        .at("strategy/pp_schedule", "null"),
    Option{"virtual-stages", "N", "Model parallel", "stages per pipeline rank (1)"}
        .only_one("pipeline parallelism")
        .at("strategy/virtual_stages", "1"),
    Option{"cp", "N", "Model parallel", "context parallel ranks (1)"}
        .at("strategy/cp")
        .only_one("context parallelism"),
    Option{"ep", "N", "Model parallel", "expert parallel ranks (1)"}
        .at("strategy/ep")
        .only_one("expert parallelism"),

    Option{"precision", "KIND", "Precision",
           "fp32, bf16-mixed, fp16-mixed, bf16, fp16, fp8-mixed (bf16-mixed)"}
        .at("strategy/precision")
        .one_of(kNamesOf<Precision>)
        .fixing("precision")
        .written_anew(),
    Option{"fp8-recipe", "NAME", "Precision",
           "torchao's, of fp8-mixed: tensorwise, rowwise, rowwise_with_gw_hp (tensorwise)"}
        .of_step_at("strategy/fp8_recipe")
        .one_of(kNamesOf<Fp8Recipe>)
        .fixing("precision")
        .written_anew(),
    Option{"fp8-all-gather", "YES|NO", "Precision",
           "of fp8-mixed: FSDP2 gathers weights that are cast (no)"}
        .of_step_at("strategy/fp8_all_gather")
        .fixing("precision", "zero", "stack")
        .written_anew(),
    Option{"param-dtype", "DTYPE", "Precision", "dtype the weights are loaded in (fp32 for mixed)"}
        .of_step_at("strategy/param_dtype")
        .fixing("precision", "param-dtype", "stack"),
    Option{"grad-dtype", "DTYPE", "Precision", "of reduced gradients (the stack's)"}
        .of_step_at("strategy/grad_dtype")
        .fixing("zero", "stack", "precision"),
    Option{"reduce-dtype", "DTYPE", "Precision",
           "gradients are cast to it for the exchange over ranks (plimsoll); FSDP's reduce dtype"}
        .of_step_at("strategy/reduce_dtype")
        .fixing("stack", "precision"),
    Option{"master-weights", "YES|NO", "Precision", "fp32 masters beside 16-bit weights"}
        .of_step_at("strategy/master_weights")
        .fixing("precision"),
    Option{"fsdp-upcast", "YES|NO", "Precision", "Accelerate's fp32 storage under FSDP (yes)"}
        .of_step_at("strategy/fsdp_upcast")
        .fixing("zero", "stack", "precision"),

    Option{"optimizer", "NAME", "Optimizer",
           "adamw, sgd, momentum, rmsprop, adagrad, adafactor, muon, lion, ademamix, "
           "rmsprop-bnb, adam8bit, lion8bit, ademamix8bit, rmsprop8bit, paged-adamw, "
           "paged-adam8bit, paged-lion, paged-lion8bit, paged-ademamix, paged-ademamix8bit, "
           "torchao-adam8bit, torchao-adam4bit, torchao-adamfp8, schedule-free-adamw, "
           "schedule-free-sgd, schedule-free-radam, galore, galore8bit, q-galore, apollo, "
           "apollo-mini, "
           "adam-mini, stable-adamw, grokadamw, lomo, adalomo (adamw)"}
        .of_step_at("strategy/optimizer")
        .fixing("optimizer"),
    Option{"optimizer-impl", "KIND", "Optimizer", "foreach, fused, for-loop (the stack's)"}
        .of_step_at("stack/optimizer_impl")
        .one_of(kNamesOf<OptimizerImpl>)
        .fixing("optimizer-impl")
        .written_anew(),
    of_a_step("galore-rank", "N", "Optimizer", "of the projected gradients (128)",
              "strategy/galore_rank"),
    of_a_step("optimizer-in-backward", "", "Optimizer", "step each parameter as its gradient comes",
              "strategy/optimizer_in_backward"),

    Option{"seq-len", "N", "Batch", "tokens (4096, at most what the model takes)"}
        .of_step_at("batch/seq_len")
        .written_anew(),
    Option{"micro-batch", "N", "Batch", "sequences per GPU and micro-step (1)"}
        .of_step_at("batch/micro_batch")
        .fixing("micro-batch")
        .written_anew(),
    Option{"grad-accum", "N", "Batch", "micro-steps per step (1)"}
        .of_step_at("batch/grad_accum")
        .written_anew(),
    Option{"global-batch", "N", "Batch", "sequences per step of all GPUs, instead of --grad-accum"}
        .of_step_at("batch/grad_accum")
        .written_anew(),

    Option{"padding-mask", "YES|NO", "Batch",
           "rows hold padding, which an attention mask says (no)"}
        .of_step_at("strategy/rows")
        .fixing("stack"),
    Option{
        "data", "FILE", "Batch",
        "lengths: JSONL with input_ids, length or num_tokens, or CSV of length,count; planned is "
        "the worst batch"}
        .fixing("stack")
        .of_a_step(),
    Option{"padding", "KIND", "Batch",
           "none; free: a micro-batch's samples in one row, told apart by position_ids; of --data "
           "longest, max, free (none; longest)"}
        .of_step_at("strategy/rows")
        .one_of(kPadding, 4, "")
        .fixing("stack"),
    Option{"packing", "KIND", "Batch", "of --data: no, wrapped, bfd, as TRL packs (no)"}
        .one_of(kPacking, 3, "")
        .of_a_step(),
    Option{"pad-to-multiple-of", "N", "Batch", "of --data: rows are as long as a multiple (1)"}
        .of_a_step(),

    Option{"recompute", "KIND", "Activations",
           "none, selective (core_attn), full, sqrt, every:K (uniform:K), block:N (the first N), "
           "nth:N (every Nth), recursive:C, ops:NAME+NAME, fit, budget:SIZE (none)"}
        .of_step_at("strategy/recompute")
        .fixing("recompute")
        .written_anew(),
    of_a_step("use-reentrant", "YES|NO", "Activations",
              "of checkpoints (no; FSDP1's old releases: yes)", "stack/use_reentrant"),
    Option{"attention", "KIND", "Activations",
           "flash, flash-1, flash-2, flash-3 (the packages), cudnn, efficient (of SDPA), flex, "
           "xformers (of Unsloth), eager, math"}
        .of_step_at("strategy/attention")
        .one_of(kNamesOf<Attention>)
        .fixing("attention")
        .written_anew(),
    Option{"loss", "KIND", "Activations",
           "full, chunked, fused, tiled (TRL 1.x's) (full; fused with liger)"}
        .of_step_at("strategy/loss")
        .one_of(kNamesOf<Loss>)
        .fixing("loss")
        .written_anew(),

    Option{"adapter", "KIND", "Adapters",
           "lora, ia3, vera, prompt-tuning, p-tuning, prefix-tuning (lora, with --lora-rank)"}
        .of_step_at("strategy/lora/kind")
        .one_of(kNamesOf<AdapterKind>)
        .fixing("adapters"),
    Option{"lora-rank", "R", "Adapters", "train adapters of this rank, freeze the rest"}
        .of_step_at("strategy/lora/rank")
        .fixing("adapters"),
    of_adapters("adapters", "N", "LoRA: how many are loaded; one is trained (1)",
                "strategy/lora/adapters"),
    of_adapters("lora-alpha", "A", "(16)", "strategy/lora/alpha"),
    of_adapters(
        "lora-targets", "LIST",
        "all-linear, attention, q_proj,v_proj,… (all-linear; of stacked experts attention; of "
        "ia3 PEFT's own)",
        "strategy/lora/targets"),
    of_adapters("target-parameters", "LIST",
                "mlp.experts.gate_up_proj,…: stacked experts with LoRA, of Transformers 5",
                "strategy/lora/target_parameters"),
    of_adapters("feedforward-modules", "LIST",
                "ia3: of the targets, those whose input is scaled; none (PEFT's own)",
                "strategy/lora/feedforward"),
    of_adapters("virtual-tokens", "N",
                "of a prompt, or of a prefix's keys and values, beside --seq-len",
                "strategy/lora/virtual_tokens"),
    of_adapters("encoder-hidden", "N",
                "width of the perceptron: p-tuning (the model's), prefix-tuning (it has none)",
                "strategy/lora/encoder_hidden"),
    of_adapters("lora-dropout", "P", "(0)", "strategy/lora/dropout"),
    of_adapters("adapter-dtype", "DTYPE", "fp32, bf16 (fp32)", "strategy/lora/adapter_dtype"),
    of_adapters("modules-to-save", "LIST",
                "embed_tokens,lm_head,…: train copies of these whole modules",
                "strategy/lora/modules_to_save"),
    of_adapters("lora-bias", "YES|NO", "PEFT's lora_bias (no)", "strategy/lora/lora_bias"),
    of_adapters("use-dora", "YES|NO", "PEFT's weight-decomposed adapters (no)",
                "strategy/lora/use_dora"),
    Option{
        "quantize", "KIND", "Adapters",
        "nf4, nf4-dq, fp4, int8, int8-affine, gptq, gptq-row, awq, hqq, torchao-int8 (none): packs "
        "the frozen base"}
        .of_step_at("strategy/quantize")
        .fixing("adapters", "quantize"),
    of_a_step("quant-storage", "DTYPE", "Adapters",
              "uint8, bf16, fp16, fp32: holds packed values (uint8)", "strategy/quant_storage"),
    of_a_step("kbit-prep", "YES|NO", "Adapters",
              "PEFT's prepare_model_for_kbit_training (yes with autocast, unless sharded)",
              "strategy/kbit_prep"),
    of_a_step("kbit-casting", "YES|NO", "Adapters",
              "TRL's peft_module_casting_to_bf16 behind it: all but norms in bf16 (no)",
              "strategy/kbit_casting"),
    Option{"freeze", "PATTERN", "Adapters", "parameters that are not trained (repeatable)", true}
        .of_step_at("strategy/freeze")
        .fixing("adapters"),
    Option{"train", "PATTERN", "Adapters", "exceptions from --freeze (repeatable)", true}
        .of_step_at("strategy/train")
        .fixing("adapters"),

    Option{"offload", "LIST", "Offload", "optimizer, gradients, params, activations: to the host"}
        .of_step_at("strategy/offload")
        .fixing("offload"),
    Option{"offload-to", "NAME", "Offload", "cpu, nvme, managed (cpu)"}
        .of_step_at("strategy/offload_to")
        .one_of(kOffloadTo, 2,
                "what --offload moves goes to cpu or nvme; unified memory is what the paged "
                "optimizers keep their states in (--optimizer paged-adamw, paged-adam8bit)"),
    of_a_step("offload-pin", "YES|NO", "Offload", "pin_memory of what is on the host (yes)",
              "strategy/offload_pin"),
    of_a_step("offload-optimizer-buffer-count", "N", "Offload",
              "deepspeed, nvme: offload_optimizer.buffer_count (4)",
              "stack/deepspeed/offload_optimizer_buffer_count"),
    of_a_step("offload-param-buffer-count", "N", "Offload",
              "deepspeed, nvme: offload_param.buffer_count (5)",
              "stack/deepspeed/offload_param_buffer_count"),
    of_a_step("offload-param-buffer-size", "N", "Offload",
              "deepspeed, nvme: offload_param.buffer_size, elements (1e8)",
              "stack/deepspeed/offload_param_buffer_size"),
    of_a_step("offload-param-max-in-cpu", "N", "Offload",
              "deepspeed, nvme: parameters that leave their files (1e9)",
              "stack/deepspeed/offload_param_max_in_cpu"),

    Option{"mode", "NAME", "What", "train, inference (train)"}.one_of(
        kModes, 1, "inference is not modelled yet"),
    Option{"phase", "NAME", "What",
           "step; load: also what loading the model takes, which may be more; merge: what "
           "loading and merging the trained adapter takes, in a process of its own (step)"}
        .one_of(kPhases)
        .of_a_step(),
    Option{"device-map", "NAME", "What",
           "of --phase load, with AWQ or nothing packed: none, then model.to; auto: "
           "from_pretrained's (none; of --phase merge auto)"}
        .one_of(kDeviceMaps)
        .of_a_step(),
    Option{"batch", "N", "What", "inference: sequences"}.never(kInference),
    Option{"context", "N", "What", "inference: tokens"}.never(kInference),
    Option{"kv-dtype", "DTYPE", "What", "inference: of the key-value cache"}.never(kInference),

    {"deepspeed", "FILE", "Files", "the user's own ds_config.json"},
    {"peft", "FILE", "Files", "the user's own adapter_config.json"},
    {"accelerate", "FILE", "Files", "the user's own config.yaml of accelerate launch"},
    {"training-args", "FILE", "Files", "TrainingArguments as JSON or YAML, MODEL in it or not"},
    {"axolotl", "FILE", "Files", "the user's own YAML of axolotl train"},
    {"llamafactory", "FILE", "Files", "the user's own YAML of llamafactory-cli train"},
    {"swift", "FILE", "Files", "the arguments of swift sft (ms-swift) as YAML or JSON"},
    {"torchtitan", "FILE", "Files", "the user's own TOML of torchtitan 0.2"},
    {"trainer", "NAME[@VERSION]", "Files", "another program's defaults: see `plimsoll trainers`"},

    Option{"detail", "", "Output", "the whole timeline and every tensor in the JSON document"}
        .of_a_step(),
};
}  // namespace

std::span<const Option> plan_options() {
  return kPlanOptions;
}

const Option* find_plan_option(std::string_view name) {
  const auto* found = std::ranges::find(kPlanOptions, name, &Option::name);
  return found == std::end(kPlanOptions) ? nullptr : found;
}

}  // namespace plimsoll::models
