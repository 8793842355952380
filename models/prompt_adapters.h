// Adapters that learn a prompt, as PEFT 0.21 makes them: virtual tokens, which the model reads in
// front of each sequence's own. Prompt tuning (peft/tuners/prompt_tuning) trains their embeddings;
// P-tuning (peft/tuners/p_tuning) also the perceptron of three layers that these go through. Prefix
// tuning (peft/tuners/prefix_tuning) trains their keys and values in each layer, or the embeddings
// and the perceptron of two layers that make these.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/model_spec.h"
#include "models/run_spec.h"

namespace plimsoll::models {

constexpr bool learns_prompt(AdapterKind kind) {
  return kind == AdapterKind::prompt_tuning || kind == AdapterKind::p_tuning ||
         kind == AdapterKind::prefix_tuning;
}

// How many tokens each sequence is longer inside the model; 0 without such an adapter.
std::int64_t virtual_tokens(const Strategy& strategy);

// How many keys and values stand in front of each sequence's own; 0 without prefix tuning.
std::int64_t prefix_tokens(const Strategy& strategy);

// Whether PEFT puts a prefix layer by layer into a cache that knows windows (peft 0.21,
// peft_model.py, get_prompt).
constexpr bool fills_own_cache(std::string_view model_type) {
  return model_type == "gemma2" || model_type == "gemma3_text";
}

// What it trains, as named_parameters() lists it behind the model's own: in fp32, whichever dtype
// the model has. None of another adapter. Error{bad_input}: what it does not have (a rank's
// variants, modules to save), no virtual tokens; a model without a decoder.
std::vector<ParameterRow> prompt_parameters(const ModelSpec& model, const Lora& lora);

Count prompt_parameter_count(const ModelSpec& model, const Lora& lora);

}  // namespace plimsoll::models
