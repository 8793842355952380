// Which of a family's modules Liger's kernels replace: what `use_liger_kernel=True` of
// Transformers' Trainer patches (liger_kernel 0.8.5, transformers/monkey_patch.py,
// apply_liger_kernel_to_… of a model that exists).
#pragma once

#include <cstdint>
#include <string_view>

#include "models/run_spec.h"

namespace plimsoll::planner::pytorch {

// How a norm runs. Liger's backward writes the input's gradient into the result's, or beside it
// where the residual stream still needs that one.
enum class NormKernel : std::uint8_t { eager, liger, liger_in_place };

struct LigerPatch {
  NormKernel norms = NormKernel::eager;  // of the layers
  NormKernel heads = NormKernel::eager;  // of queries and keys
  NormKernel last = NormKernel::eager;
  bool gated = false;  // silu(gate) · up, gelu(gate) · up
  bool rotary = false;
  bool cross_entropy = false;  // where the logits are made
  bool heads_first = false;  // queries and keys are transposed before their norms, which copy them
};

// None of a strategy with eager kernels. Throws Error{unsupported} for families that Liger has no
// kernels for, and for those whose kernels are not modelled.
LigerPatch liger_patch(std::string_view model_type, const models::Strategy& strategy);

}  // namespace plimsoll::planner::pytorch
