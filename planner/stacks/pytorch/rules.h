// What a strategy does not say of eager PyTorch's step.
#pragma once

#include "models/decisions/layer.h"
#include "models/run_spec.h"
#include "planner/program/work.h"
#include "planner/stacks/pytorch/kernels.h"

namespace plimsoll::planner::pytorch {

// Which parameters FSDP2 shards together.
//   accelerate: as Accelerate 1.15 does (utils/fsdp_utils.py, fsdp2_prepare_model).
//   root: every decoder layer, and the root with all the rest (fully_shard(layer) …
//   fully_shard(model)). ends: also the embedding and an untied head on their own.
enum class FsdpUnits : std::uint8_t { accelerate, root, ends };

// Inside the caching allocator: cuBLAS's of each thread that multiplies, the forward's and
// autograd's, and cuBLASLt's of a thread that multiplies and adds a bias, or multiplies in float8:
// `lt_start`, where the layers have none and the model's start does.
struct BlasWorkspaces {
  Bytes forward, backward, lt, lt_start;
};

// Whether autograd's thread multiplies by cuBLASLt, too: in what is run again, and in float8.
inline bool both_use_lt(const models::Strategy& strategy) {
  return models::decisions::recomputes_layers(strategy.recompute.kind) ||
         strategy.precision == models::Precision::fp8_mixed;
}
inline Bytes workspaces_in_all(const BlasWorkspaces& blas, const models::Strategy& strategy) {
  const Bytes lt = blas.lt * (both_use_lt(strategy) ? 2 : 1);
  return blas.forward + blas.backward + lt + blas.lt_start;
}

// What the strategy does not say: the GPU's kernels, the allocator, the training loop.
struct Rules {
  std::int64_t granularity = 512;  // CUDACachingAllocator's kMinBlockSize
  Processors gpu;
  // What runs behind scaled_dot_product_attention in 16 bits without a mask: torch 2.11 asks cuDNN
  // first on compute capability 9 and 10 (sdp_utils.cpp, priority_order), flash elsewhere from 8.0
  // on; below, the memory-efficient kernel is the only fused one, and takes no bf16.
  enum class Sdpa : std::uint8_t { flash, cudnn, efficient } sdpa = Sdpa::flash;
  FsdpUnits fsdp_units = FsdpUnits::accelerate;
  // Autocast on top of FSDP's own policy: Accelerate does so for FSDP1 (accelerator.py,
  // prepare_model), for FSDP2 not (_prepare_fsdp2).
  bool fsdp_autocast = false;
  std::int64_t rank = -1;  // whose step it is; -1: the fullest one's
  bool hold_outputs = false;  // the caller keeps the model's outputs until after backward
  bool checks_packing = false;  // Transformers, where a batch has no mask and no cache is used
  std::int64_t batch_tensors = 3;  // int64 tensors of a batch: input_ids, labels, attention_mask
  // Parameters and states one by one, as the allocator's replay needs them; false: one sum a layer,
  // which has the same peak (only what a search asks about).
  bool each_parameter = true;
  // DeepSpeed's own nn.Linear under ZeRO-3 (runtime/zero/linear.py): it saves its input although
  // the weight is frozen, and adds the bias behind the GEMM, so that its gradient arrives last.
  bool zero3_linear = false;
  // Every token visits the last expert of each layer, where experts are a loop; else all are
  // visited alike (expert_loop.cpp).
  bool one_expert = false;
  // What the model has of the card before anything is allocated; 0: not known.
  Bytes card;
  BlasWorkspaces blas;
  Works* works = nullptr;  // what the ops ask of the GPU, for who asks
};

}  // namespace plimsoll::planner::pytorch
