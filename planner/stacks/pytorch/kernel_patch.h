// Which of a family's modules have other kernels. --kernels liger: what `use_liger_kernel=True` of
// Transformers' Trainer patches (liger_kernel 0.8.5, transformers/monkey_patch.py,
// apply_liger_kernel_to_… of a model that exists). --kernels fused: fms-acceleration's plugin
// fused-ops-and-kernels (@876e2ed, src/fms_acceleration_foak/), whose norms, rotary embedding and
// cross entropy are Unsloth's of early 2024; so are its fused adapters (fused_adapters.cpp).
// --kernels unsloth: Unsloth itself (unsloth and unsloth_zoo 2025.11.6), whose models/llama.py and
// its kin run the decoder's forward in place of Transformers'.
#pragma once

#include <cstdint>
#include <string_view>

#include "models/run_spec.h"

namespace plimsoll::planner::pytorch {

// How a norm runs. Liger's backward writes the input's gradient into the result's, or beside it
// where the residual stream still needs that one.
enum class NormKernel : std::uint8_t { eager, liger, liger_in_place };

struct KernelPatch {
  NormKernel norms = NormKernel::eager;  // of the layers
  NormKernel heads = NormKernel::eager;  // of queries and keys
  NormKernel last = NormKernel::eager;
  bool gated = false;  // silu(gate) · up, gelu(gate) · up
  bool rotary = false;
  // Where the logits are made: eager, or one that writes their gradient over them.
  enum class CrossEntropy : std::uint8_t { eager, liger, fms } cross_entropy{};
  bool heads_first = false;  // queries and keys are transposed before their norms, which copy them
  bool norm_gradients = true;  // fms: its backward returns none for the weight
  // LoRA in one function with its GEMM: fms-acceleration's of a packed base, Unsloth's of any, and
  // that of a gated MLP as a whole.
  enum class Adapters : std::uint8_t { peft, fms, unsloth } adapters{};
  // models/llama.py, LlamaModel_fast_forward: rotary tables of all positions that stay, no position
  // ids, no masks.
  bool own_decoder = false;
  // A layer's norm writes its input's gradient over a tensor that views still hold, so that what
  // flows past is added in a new one.
  bool sums_apart = false;
  bool repeats_groups = false;  // keys and values, for the flash_attn package, which takes groups
};

// None of a strategy with eager kernels. Throws Error{unsupported} for families that the package
// has no kernels for, and for those whose kernels are not modelled.
KernelPatch kernel_patch(std::string_view model_type, const models::Strategy& strategy);

}  // namespace plimsoll::planner::pytorch
