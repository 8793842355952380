// The user's question as data: strategy, batch, cluster. Validated once by `validate`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/adapter_spec.h"
#include "models/allocator_conf.h"
#include "models/base/dtype.h"
#include "models/base/quantity.h"
#include "models/batch.h"
#include "models/deepspeed_options.h"
#include "models/model_code.h"
#include "models/offload.h"
#include "models/optimizer_kind.h"
#include "models/recompute_kind.h"
#include "models/stack_versions.h"

namespace plimsoll::models {

enum class Stack : std::uint8_t { plimsoll, pytorch, deepspeed, megatron };
enum class Device : std::uint8_t { cuda, cpu };
enum class Precision : std::uint8_t { fp32, bf16_mixed, fp16_mixed, bf16, fp16, fp8_mixed };
// 16-bit arithmetic beside fp32 weights.
constexpr bool is_mixed(Precision precision) {
  return precision == Precision::bf16_mixed || precision == Precision::fp16_mixed ||
         precision == Precision::fp8_mixed;
}
// torchao's recipes for linears in float8 (Float8LinearRecipeName): one scale for a tensor, one for
// each row, and the latter with weights' gradients in 16 bits.
enum class Fp8Recipe : std::uint8_t { tensorwise, rowwise, rowwise_with_gw_hp };
// flash: PyTorch's scaled_dot_product_attention; flash_1: the same with FlashAttention of the first
// generation (Triton's included), as PyTorch 2.0 and 2.1 have it; flash_2 and flash_3: the packages
// flash_attn and flash_attn_interface (Hopper's), which Transformers calls itself; cudnn and
// efficient: SDPA told to take that kernel of its own (torch.nn.attention.sdpa_kernel); flex:
// torch.nn.attention.flex_attention, which Transformers compiles; xformers: its
// memory_efficient_attention, which Unsloth calls.
enum class Attention : std::uint8_t {
  flash,
  eager,
  math,
  flash_1,
  flash_2,
  flash_3,
  cudnn,
  efficient,
  flex,
  xformers
};
constexpr bool is_flash_package(Attention attention) {
  return attention == Attention::flash_2 || attention == Attention::flash_3;
}
constexpr bool is_sdpa_kernel(Attention attention) {
  return attention == Attention::cudnn || attention == Attention::efficient;
}
constexpr bool is_flash(Attention attention) {
  return attention != Attention::eager && attention != Attention::math;
}
// tiled: TRL's head from 1.x on, log-probabilities of tiles of logits.
enum class Loss : std::uint8_t { full, chunked, fused, tiled };
enum class Kernels : std::uint8_t { eager, liger, fused, unsloth };
// plimsoll: ranks are threads of one process, processes of MPI on hosts, or processes with a GPU
// each.
enum class Exchange : std::uint8_t { threads, mpi, nccl };
// torch.compile: each decoder layer by itself, or the whole model.
enum class Compile : std::uint8_t { no, block, model };
enum class OptimizerImpl : std::uint8_t { foreach, fused, for_loop };

// The frozen base packed (models/storages.h).
struct PackedStorage;
struct Quantization {
  const PackedStorage* storage = nullptr;  // a row
  DType held_in = DType::uint8;  // bitsandbytes' bnb_4bit_quant_storage
  std::optional<bool> kbit_prep;  // see kbit_prepared
  bool kbit_casting = false;  // see casts_behind_kbit
  bool operator==(const Quantization&) const = default;
};

// Processes with a GPU each (DDP, and what shards); torch.nn.DataParallel: one process with a
// thread for each GPU.
enum class DataParallelKind : std::uint8_t { ddp, dp };

// The knobs of one stack's data parallelism, under the stack's own names; defaults are the stack's.
struct DataParallel {
  int zero = 0;  // contract: 0 DDP … 3 full shard
  int fsdp_version = 2;
  // FSDP1: checkpoints inside the units (apply_activation_checkpointing of the wrapped model, as
  // Accelerate's activation_checkpointing does); whether original parameters are stepped; whether
  // rank 0 sends each unit to the others while it is wrapped.
  bool fsdp_checkpoints = false, use_orig_params = true, sync_module_states = false;
  std::int64_t shard_group = 0;  // 0: all data-parallel ranks
  DataParallelKind kind = DataParallelKind::ddp;
  bool gradient_as_bucket_view = false;  // DDP
  Bytes bucket_cap = Bytes(25 << 20);  // DDP bucket_cap_mb (MiB), plimsoll's reduce bucket
  std::optional<DType> reduce_dtype;  // FSDP MixedPrecisionPolicy.reduce_dtype
  std::optional<bool> fsdp_upcast;  // Accelerate: trainable parameters stored in fp32
  bool reshard_after_forward = true;  // ZeRO-3; false is what --zero 2 means on pytorch
  DeepSpeedOptions deepspeed;
  bool operator==(const DataParallel&) const = default;
};

struct Strategy {
  Stack stack = Stack::pytorch;
  Device device = Device::cuda;
  Compile compile = Compile::no;
  AllocatorConf allocator;  // PYTORCH_CUDA_ALLOC_CONF; stacks pytorch and deepspeed
  bool hold_outputs = false;  // pytorch: the loop keeps the model's outputs until after backward
  Kernels kernels = Kernels::eager;
  ModelCode code = ModelCode::transformers;  // whose model code runs; others' with pytorch alone
  Release transformers = kTransformers;  // which release of it; stacks pytorch and deepspeed
  Release torch = kTorch;  // stacks pytorch and deepspeed
  Release bitsandbytes = kBitsandbytes;  // stack pytorch: of packed bases and its optimizers
  std::int64_t gpus = 1;  // world size
  std::int64_t gpus_per_node = 8;
  DataParallel data;
  std::int64_t tp = 1, pp = 1, cp = 1, ep = 1;
  Precision precision = Precision::bf16_mixed;
  std::optional<DType> param_dtype;  // dtype the weights are loaded in
  std::optional<DType> grad_dtype;
  std::optional<bool> master_weights;
  Optimizer optimizer = Optimizer::adamw;
  std::optional<OptimizerImpl> optimizer_impl;  // the stack's default where absent
  // pytorch: each parameter has an optimizer of its own, which steps it when its gradient is there
  // (register_post_accumulate_grad_hook), and lets the gradient go.
  bool optimizer_in_backward = false;
  // fp8_mixed: torchao's linears; and whether FSDP2 gathers weights that are cast already.
  Fp8Recipe fp8_recipe = Fp8Recipe::tensorwise;
  bool fp8_all_gather = false;
  std::int64_t galore_rank = 0;  // of the optimizers that project gradients; 0: the package's
  Recompute recompute;
  std::optional<bool> use_reentrant;  // torch.utils.checkpoint's; the stack's where absent
  Attention attention = Attention::flash;
  Loss loss = Loss::full;
  Rows rows = Rows::full;
  bool deterministic = false;  // plimsoll: every stage reduces after every micro-batch
  std::optional<Exchange> exchange;  // plimsoll; absent: the device's (decisions/exchange.h)
  std::optional<Lora> lora;
  std::optional<Quantization> quantize;
  Offload offload;
  std::vector<std::string> freeze;  // patterns of checkpoint names (shell wildcards)
  std::vector<std::string> train;  // overrides freeze
  bool operator==(const Strategy&) const = default;
};

inline bool is_fsdp1(const Strategy& s) {
  return s.stack == Stack::pytorch && s.data.zero >= 2 && s.data.fsdp_version == 1;
}

}  // namespace plimsoll::models
