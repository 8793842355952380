// What planner, runtime, readers and exports know of an optimizer: a row of models/optimizers.h.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "models/optimizer_moments.h"
#include "models/run_spec.h"

namespace plimsoll::models {

// A step that is not one kernel: values of the parameter's width that it reads and writes for one
// element, in passes over all tensors. `iterations` (Newton and Schulz's) multiply each matrix X in
// bf16: X Xᵀ, the square of that, and both with X.
struct StepPasses {
  double values = 0, passes = 1, iterations = 0;
  // It reads the gradient, and reads and writes the parameter and its states.
  bool in_one_kernel() const { return values == 0; }
};

// Stack pytorch's: torch.optim's (2.11: foreach by default, fused, for-loop), or a package's.
struct TorchOptimizer {
  const char* refusal = nullptr;  // why stack pytorch does not plan it; none: it does
  const char* refusal_zero1 = nullptr;  // of ZeroRedundancyOptimizer, FSDP1, FSDP2
  const char* refusal_fsdp1 = nullptr;
  const char* refusal_fsdp2 = nullptr;
  const char* refusal_fused = nullptr;  // of --optimizer-impl fused
  const char* refusal_bf16 = nullptr;  // of parameters in bf16
  // Who else has it: it has one form, and steps one parameter after another.
  const char* package = nullptr;
  // What a step makes that is not fused: foreach a list of it, a copy of every state of this kind;
  // for-loop (and a package) what `moments` say. None: in place.
  const char* temporary = nullptr;
  std::int64_t lists = 1;  // so many of these
  std::span<const Moment> moments = {};
  bool counts_on_device = false;  // fused: the number of steps, fp32, of each parameter
  std::optional<DType> state_dtype = {};  // none: the parameter's
  BlockStates blocks = {};
  // States of at least so many elements in managed memory, beside torch's allocator; 0: none.
  std::int64_t paged_from = 0;
  const char *assumption = nullptr, *source = nullptr;  // what else an answer stands on
  // Matrices of layers, to --galore-rank, this where that is not asked; those it steps last. By an
  // SVD, or a random matrix.
  std::int64_t projects_to = 0;
  bool factors = false;
  bool in_backward = true;  // so is a step of each parameter's own
  bool behind = false;  // it has no other step, and takes each when the next gradient is there
  bool on_host = false;  // its states are, pageable, while it does not step their parameter
  const char* value_of_each = nullptr;  // one of fp32, kept of each parameter

  // What fused would spare.
  bool fused_spares() const { return temporary != nullptr && refusal_fused == nullptr; }
  bool makes(OptimizerImpl impl, const Strategy& s) const {
    return temporary != nullptr && s.optimizer_impl.value_or(OptimizerImpl::foreach) == impl;
  }
  bool one_by_one(const Strategy& s) const {
    return package != nullptr || s.optimizer_impl == OptimizerImpl::for_loop;
  }
  bool has_counters(const Strategy& s) const {
    return counts_on_device && s.optimizer_impl == OptimizerImpl::fused;
  }
};

// DeepSpeed's (0.19.8). Names: runtime/config.py, DEEPSPEED_OPTIMIZERS; others are torch.optim's.
struct DeepSpeedOptimizer {
  const char* refusal = nullptr;
  const char* refusal_unsharded = nullptr;  // of --zero 0
  const char* type = nullptr;  // optimizer.type of ds_config.json
  const char* other_type = nullptr;  // which means the same
  // Stage 0 with 16-bit weights steps one flat tensor (FP16_Optimizer) where DeepSpeed's own kernel
  // is used, and each parameter (FP16_UnfusedOptimizer) elsewhere: engine.py, fused_opts.
  bool steps_flat = false;
  bool tested = false;  // runtime/zero/utils.py, ZERO_SUPPORTED_OPTIMIZERS
  const char* setting = nullptr;  // member of optimizer.params beside those of `trainer_settings`
  const char* setting_value = nullptr;  // JSON
  std::span<const char* const> trainer_settings = {};  // Transformers fills in what is "auto"
};

// Transformers' Trainer (training_args.py, OptimizerNames).
struct TrainerOptimizer {
  const char* name = nullptr;  // none: not exported
  const char* fused = nullptr;  // where it is another
  const char* argument = nullptr;  // of TrainingArguments
  const char* note = nullptr;
};

struct OptimizerRule {
  Optimizer kind;
  std::string_view name;  // on the command line and in JSON
  std::span<const StateTensor> states = {};
  StepPasses unfused = {};
  bool in_runtime = false;  // stack plimsoll has it
  float beta1 = 0.9f, beta2 = 0.999f;  // of our own runtime
  // What steps the parameters that are no matrices of a layer; none: this one.
  std::optional<Optimizer> rest = {};
  std::optional<Optimizer> in_8_bits = {};  // the same with states in 8 bits
  TorchOptimizer torch = {.refusal = "is not modelled yet"};
  DeepSpeedOptimizer deepspeed = {.refusal = "is not modelled yet"};
  TrainerOptimizer trainer = {};

  // States in 8 bits, on every stack that has them.
  constexpr const BlockStates& blocks() const { return torch.blocks; }
  StepPasses passes_of(const std::optional<OptimizerImpl>& impl) const {
    return impl == OptimizerImpl::fused ? StepPasses{} : unfused;
  }
  bool planned() const { return in_runtime || !torch.refusal || !deepspeed.refusal; }
};

}  // namespace plimsoll::models
