// Adapters that train vectors, as PEFT 0.21 places them. IA3 (peft/tuners/ia3): one that scales
// what a linear makes, or what a feed-forward module reads. VeRA (peft/tuners/vera): two between
// shared matrices that are frozen.
#pragma once

#include <string>
#include <vector>

#include "models/lora.h"

namespace plimsoll::models {

// What PEFT takes for the model_type where nobody says it (peft/utils/constants.py,
// TRANSFORMERS_MODELS_TO_IA3_…). Error{bad_input}: it has none.
std::vector<std::string> default_ia3_targets(const ModelSpec& model);
std::vector<std::string> default_ia3_feedforward(const ModelSpec& model);

// The module whose weight row `base` is, with its vector: [1, in] of a feed-forward module, else
// [out, 1]. Error{bad_input}: neither a linear nor a Conv1D.
LoraModule ia3_module(const ModelSpec& model, std::size_t base, std::string name,
                      const std::vector<IndexRange>& ranges, const Lora& lora);

// Its vectors: lambda_b [out] and lambda_d [rank].
LoraModule vera_module(const ModelSpec& model, std::size_t base, std::string name,
                       const std::vector<IndexRange>& ranges, const Lora& lora);

// Error{bad_input}: what a kind has not (LoRA's variants; feed-forward modules, but IA3).
void check_vectors(const Lora& lora);

}  // namespace plimsoll::models
