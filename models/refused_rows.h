// Why rows of models/optimizers.h are refused.
#pragma once

#include "models/optimizer_rule.h"

namespace plimsoll::models::optimizer_rows {

// lomo_optim 0.1.1, lomo.py, fuse_update: a hook before a gradient is accumulated.
inline constexpr const char* kStepsBehind =
    "it steps a parameter when the next one's gradient is there, which is not modelled yet";
inline constexpr const char* kInt8Weights = "q_galore_torch's weights in int8 are not modelled yet";
// grokadamw 0.1.2, _update_group.
inline constexpr const char* kOnHost =
    "its states, which it copies from the host for each parameter's step, are not modelled yet";

constexpr OptimizerRule refused(Optimizer kind, std::string_view name, const char* why) {
  OptimizerRule out{.kind = kind, .name = name};
  out.torch.refusal = why;
  return out;
}

}  // namespace plimsoll::models::optimizer_rows
