#include "tools/cli/options.h"

#include <array>

#include "models/base/nearest.h"

namespace plimsoll::tools {

namespace {
constexpr Option kPlanOptions[] = {
    {"params", "N", "Model", "a bare parameter count (7.5e9, 7B) for MODEL: model states only"},
    {"assume", "TYPE", "Model", "read the config as this model_type, whatever it says (llama)"},

    {"gpu", "NAME", "Cluster", "see `plimsoll gpus` (the local GPU, else h100-sxm-80gb)"},
    {"gpus", "N", "Cluster", "world size (1)"},
    {"gpus-per-node", "N", "Cluster", "(8)"},
    {"gpu-memory", "SIZE", "Cluster", "80GB, 79.6GiB, bytes: what CUDA reports as total"},
    {"intra-node-bandwidth", "GB/S", "Cluster", "per GPU, one direction (the catalog's)"},
    {"inter-node-bandwidth", "GB/S", "Cluster", "per GPU, one direction (the vendor's servers')"},
    {"reserve", "SIZE", "Cluster", "kept free (0)"},
    {"calibration", "FILE", "Cluster", "overheads as tools/evidence fit measured them (built in)"},

    {"stack", "NAME", "Stack", "plimsoll, pytorch, deepspeed, megatron (pytorch)"},
    {"device", "NAME", "Stack", "cuda, cpu (cuda; cpu only with plimsoll)"},
    {"compile", "", "Stack", "torch.compile"},
    {"kernels", "NAME", "Stack", "eager, liger, unsloth, fused (eager)"},
    {"torch-version", "V", "Stack", "(the newest modelled)"},
    {"allocator-conf", "TEXT", "Stack", "PYTORCH_CUDA_ALLOC_CONF, in PyTorch's own syntax"},
    {"hold-outputs", "", "Stack", "the loop keeps the model's outputs until after backward"},
    {"transformers-version", "V", "Stack", "4.45 to 5.23 (5.17)"},

    {"zero", "STAGE", "Data parallel", "0, 1, 2, 3 (0); on pytorch DDP, ZeRO optimizer, FSDP"},
    {"fsdp-version", "V", "Data parallel", "1, 2 (2)"},
    {"shard-group", "N", "Data parallel", "hybrid sharding inside groups of N (all ranks)"},
    {"reduce-bucket", "SIZE", "Data parallel", "plimsoll: bytes of one gradient bucket (25MiB)"},
    {"bucket-cap-mb", "MIB", "Data parallel", "DDP's bucket_cap_mb (25)"},
    {"gradient-as-bucket-view", "YES|NO", "Data parallel", "DDP's own knob (no)"},
    {"reduce-bucket-size", "N", "Data parallel", "deepspeed: elements of a bucket (5e8)"},
    {"overlap-comm", "YES|NO", "Data parallel", "deepspeed: two buckets (yes with --zero 3)"},
    {"sub-group-size", "N", "Data parallel", "deepspeed --zero 3: elements of one step (1e9)"},
    {"stage3-prefetch-bucket-size", "N", "Data parallel", "deepspeed (5e7)"},
    {"stage3-param-persistence-threshold", "N", "Data parallel", "deepspeed (1e5)"},
    {"stage3-max-live-parameters", "N", "Data parallel", "deepspeed (1e9)"},
    {"stage3-max-reuse-distance", "N", "Data parallel", "deepspeed (1e9)"},
    {"prefetch", "N", "Data parallel", "units gathered ahead"},
    {"deterministic", "", "Data parallel", "plimsoll: all stages reduce at the same moments"},
    {"exchange", "NAME", "Data parallel", "plimsoll: nccl (GPUs), mpi or threads (the host)"},

    {"tp", "N", "Model parallel", "tensor parallel ranks (1)"},
    {"sequence-parallel", "", "Model parallel", "shard what tensor parallelism replicates"},
    {"pp", "N", "Model parallel", "pipeline stages (1)"},
    {"pp-schedule", "NAME", "Model parallel", "gpipe, 1f1b, interleaved, zero-bubble"},
    {"virtual-stages", "N", "Model parallel", "stages per pipeline rank (1)"},
    {"cp", "N", "Model parallel", "context parallel ranks (1)"},
    {"ep", "N", "Model parallel", "expert parallel ranks (1)"},

    {"precision", "KIND", "Precision",
     "fp32, bf16-mixed, fp16-mixed, bf16, fp16, fp8-mixed (bf16-mixed)"},
    {"param-dtype", "DTYPE", "Precision", "dtype the weights are loaded in (fp32 for mixed)"},
    {"grad-dtype", "DTYPE", "Precision", "of reduced gradients (the stack's)"},
    {"master-weights", "YES|NO", "Precision", "fp32 masters beside 16-bit weights"},
    {"fsdp-upcast", "YES|NO", "Precision", "Accelerate's fp32 storage under FSDP (yes)"},

    {"optimizer", "NAME", "Optimizer",
     "adamw, adam8bit, paged-adam8bit, sgd, momentum, adafactor, lion, muon, galore, galore8bit, "
     "q-galore, lomo (adamw)"},
    {"optimizer-impl", "KIND", "Optimizer", "foreach, fused, for-loop (the stack's)"},
    {"galore-rank", "N", "Optimizer", "rank of the projection"},
    {"optimizer-in-backward", "", "Optimizer", "step each parameter as its gradient comes"},

    {"seq-len", "N", "Batch", "tokens (4096, at most what the model takes)"},
    {"micro-batch", "N", "Batch", "sequences per GPU and micro-step (1)"},
    {"grad-accum", "N", "Batch", "micro-steps per step (1)"},
    {"global-batch", "N", "Batch", "sequences per step of all GPUs, instead of --grad-accum"},

    {"recompute", "KIND", "Activations", "none, selective, full, sqrt, every:K (none)"},
    {"use-reentrant", "YES|NO", "Activations", "of checkpoints (no; FSDP1's old releases: yes)"},
    {"attention", "KIND", "Activations", "flash, flash-1 (its first generation), eager, math"},
    {"loss", "KIND", "Activations", "full, chunked, fused (full)"},

    {"lora-rank", "R", "Adapters", "train adapters of this rank, freeze the rest"},
    {"lora-alpha", "A", "Adapters", "(16)"},
    {"lora-targets", "LIST", "Adapters", "all-linear, attention, q_proj,v_proj,… (all-linear)"},
    {"lora-dropout", "P", "Adapters", "(0)"},
    {"adapter-dtype", "DTYPE", "Adapters", "fp32, bf16 (fp32)"},
    {"quantize", "KIND", "Adapters", "int8, nf4, nf4-dq, fp4, gptq, awq: the frozen base"},
    {"quant-storage", "DTYPE", "Adapters", "dtype that holds the packed base"},
    {"kbit-prep", "YES|NO", "Adapters", "PEFT's prepare_model_for_kbit_training"},
    {"freeze", "PATTERN", "Adapters", "parameters that are not trained (repeatable)", true},
    {"train", "PATTERN", "Adapters", "exceptions from --freeze (repeatable)", true},

    {"offload", "LIST", "Offload", "optimizer, params, activations"},
    {"offload-to", "NAME", "Offload", "cpu, nvme (cpu)"},

    {"mode", "NAME", "What", "train, inference (train)"},
    {"batch", "N", "What", "inference: sequences"},
    {"context", "N", "What", "inference: tokens"},
    {"kv-dtype", "DTYPE", "What", "inference: of the key-value cache"},

    {"deepspeed", "FILE", "Files", "the user's own ds_config.json"},
    {"peft", "FILE", "Files", "the user's own adapter_config.json"},
    {"accelerate", "FILE", "Files", "the user's own config.yaml"},

    {"detail", "", "Output", "the whole timeline and every tensor in the JSON document"},
};

constexpr Option kOutputOptions[] = {
    {"json", "FILE", "Output", "write the JSON document; - for standard output"},
    {"quiet", "", "Output", "no table, no notes"},
};
}  // namespace

std::span<const Option> plan_options() {
  return kPlanOptions;
}

std::span<const Option> output_options() {
  return kOutputOptions;
}

const Option* find_option(std::string_view name) {
  for (const auto& options : {plan_options(), output_options()})
    for (const Option& option : options)
      if (option.name == name) return &option;
  return nullptr;
}

std::string nearest_option(std::string_view name) {
  std::vector<std::string_view> names{"help"};
  for (const auto& options : {plan_options(), output_options()})
    for (const Option& option : options) names.push_back(option.name);
  return nearest(name, names);
}

const std::string* Options::find(std::string_view name) const {
  for (const auto& [n, value] : given_)
    if (n == name) return &value;
  return nullptr;
}

std::vector<std::string> Options::all(std::string_view name) const {
  std::vector<std::string> values;
  for (const auto& [n, value] : given_)
    if (n == name) values.push_back(value);
  return values;
}

}  // namespace plimsoll::tools
