// What a parameter holds before the first step, by its family's own rule.
#pragma once

#include "models/lora.h"
#include "models/model_spec.h"

namespace plimsoll::models {

enum class InitialKind : std::uint8_t { zeros, ones, normal, uniform };

struct InitialValues {
  InitialKind kind = InitialKind::zeros;
  double spread = 0;  // normal: standard deviation; uniform: values lie in [-spread, spread)
  std::optional<std::int64_t> zero_row;  // of the first axis
  bool operator==(const InitialValues&) const = default;
};

// Transformers' _init_weights: matrices and tables normal, norms 1 (Gemma 0), biases 0; GPT-2's two
// c_proj narrower (modeling_gpt2.py). Error{unsupported}: model.numerics is absent.
InitialValues initial_values(const ModelSpec& model, const ParameterRow& row);

// PEFT's reset_lora_parameters (peft/tuners/lora/layer.py): A by kaiming_uniform_(a = sqrt(5)),
// which is uniform within 1 / sqrt(in), and B 0; of an embedding A 0 and B normal.
InitialValues initial_lora_a(const LoraModule& module);
InitialValues initial_lora_b(const LoraModule& module);

}  // namespace plimsoll::models
