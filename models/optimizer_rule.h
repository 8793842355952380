// What planner, runtime, readers and exports know of an optimizer: a row of models/optimizers.h.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "models/run_spec.h"

namespace plimsoll::models {

// What lives between steps, beside masters: as many elements as the parameter, in the dtype that
// the stack keeps states in. Called as torch.optim calls them; names are of tensors.
enum class OptimizerState : std::uint8_t { exp_avg, exp_avg_sq, momentum_buffer };
inline constexpr std::array<const char*, 3> kOptimizerStates{"exp_avg", "exp_avg_sq",
                                                             "momentum_buffer"};
constexpr const char* name_of(OptimizerState state) {
  return kOptimizerStates[static_cast<std::size_t>(state)];
}

// What a step moves: values read and written for one element, in passes over all tensors.
struct StepTraffic {
  double values = 0, passes = 1;
};

// torch.optim's (2.11): foreach by default, fused, for-loop.
struct TorchOptimizer {
  const char* refusal = nullptr;  // why stack pytorch does not plan it; none: it does
  // What a step makes that is not fused: foreach a list of it, a copy of every state of this kind;
  // for-loop the same of one parameter at a time, and a quotient of it. None: in place.
  const char* temporary = nullptr;
  bool counts_on_device = false;  // fused: the number of steps, fp32, of each parameter

  bool makes(OptimizerImpl impl, const Strategy& s) const {
    return temporary != nullptr && s.optimizer_impl.value_or(OptimizerImpl::foreach) == impl;
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
  std::span<const OptimizerState> states = {};
  StepTraffic fused, unfused;
  bool in_runtime = false;  // stack plimsoll has it
  float beta1 = 0.9f, beta2 = 0.999f;  // of our own runtime
  TorchOptimizer torch = {.refusal = "is not modelled yet"};
  DeepSpeedOptimizer deepspeed = {.refusal = "is not modelled yet"};
  TrainerOptimizer trainer = {};

  bool planned() const { return in_runtime || !torch.refusal || !deepspeed.refusal; }
};

}  // namespace plimsoll::models
