// Why rows of models/optimizers.h are refused.
#pragma once

#include "models/optimizer_rule.h"

namespace plimsoll::models::optimizer_rows {

inline constexpr const char* kInt8Weights = "q_galore_torch's weights in int8 are not modelled yet";

constexpr OptimizerRule refused(Optimizer kind, std::string_view name, const char* why) {
  OptimizerRule out{.kind = kind, .name = name};
  out.torch.refusal = why;
  return out;
}

}  // namespace plimsoll::models::optimizer_rows
