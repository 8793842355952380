// PEFT's adapters on the experts of a mixture that are stacked in one parameter (LoraConfig's
// target_parameters; peft 0.21, tuners/lora/layer.py, ParamWrapper).
#pragma once

#include <vector>

#include "models/lora.h"

namespace plimsoll::models {

// In the order of the parameter table: of each stacked parameter that lora.parameters name ("mlp.
// experts.gate_up_proj", or its last parts) A [rank · experts, in] and B [out, rank · experts] of
// each layer, `base` its first row. Error{bad_input}: what ParamWrapper refuses beside it (dropout,
// biases, DoRA). Error{unsupported}: a name of no stacked experts.
std::vector<LoraModule> expert_adapters(const ModelSpec& model, const Lora& lora);

}  // namespace plimsoll::models
