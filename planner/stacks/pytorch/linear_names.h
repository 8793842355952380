// Names of a linear's tensors beyond those of every module: its bias and its LoRA adapter.
#pragma once

#include "models/names.h"

namespace plimsoll::planner::pytorch {

using models::ModuleNames;

struct LinearNames {
  ModuleNames base;
  ModuleNames bias;  // its `weight…` fields name the bias
  ModuleNames a, b;  // LoRA
  const char* dropped;  // LoRA's input after dropout
  const char* dropped_grad;
  const char* scaled;  // B's result times alpha / rank
  const char* sum;  // base + adapter
  const char* sum_grad;
  const char* base_grad;  // the sum's gradient as the base's result had its dtype
  const char* scaled_grad;
  const char* a_input_grad;  // in the input's dtype
};

// The names of `M`'s bias in the places of a weight's.
template <models::Text M>
constexpr ModuleNames bias_names() {
  using models::Joined;
  ModuleNames names = models::module_names<M>;
  names.weight_cast = Joined<M, ".bias.cast">::chars;
  names.weight_grad = Joined<M, ".bias.grad">::chars;
  names.weight_grad_low = Joined<M, ".bias.grad.low">::chars;
  names.weight_grad_new = Joined<M, ".bias.grad.new">::chars;
  names.weight_grad_sum = Joined<M, ".bias.grad.sum">::chars;
  return names;
}

template <models::Text M>
inline constexpr LinearNames linear_names{
    models::module_names<M>,
    bias_names<M>(),
    models::module_names<models::Joined<M, ".lora_A">::text>,
    models::module_names<models::Joined<M, ".lora_B">::text>,
    models::Joined<M, ".lora.dropped">::chars,
    models::Joined<M, ".lora.dropped.grad">::chars,
    models::Joined<M, ".lora.scaled">::chars,
    models::Joined<M, ".lora.sum">::chars,
    models::Joined<M, ".lora.sum.grad">::chars,
    models::Joined<M, ".out.grad.base">::chars,
    models::Joined<M, ".lora.scaled.grad">::chars,
    models::Joined<M, ".lora.input.grad">::chars,
};

}  // namespace plimsoll::planner::pytorch
