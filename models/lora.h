// Low-rank adapters as PEFT places them: which modules, and the parameters that they add.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_spec.h"
#include "models/run_spec.h"

namespace plimsoll::models {

// One adapted weight (or family of equal ones, as in ParameterRow): W x + B A x · alpha / rank; of
// IA3 W x · l, or W (x · l); of VeRA W x + b · B (d · A x).
struct LoraModule {
  std::size_t base;  // row of ModelSpec::parameters whose weight is adapted
  std::string name;  // module, without ".weight"; "{}" as in the base row
  // Of IA3 and VeRA neither has a name.
  ParameterRow a;  // linear: [rank, in]; embedding: [rank, rows]; convolution: [rank, in, k…]
  ParameterRow b;  // linear: [out, rank]; embedding: [width, rank]; convolution: [out, rank, 1…]
  std::vector<ParameterRow> further;  // B's bias, DoRA's magnitude: [out]; the others' vectors
  bool scales_input = false;  // IA3's, of a feed-forward module
  // All experts' rows that name this parameter: A and B are of all of them (expert_adapters.h).
  std::string_view stacked;
  std::int64_t in = 0, out = 0;  // VeRA's

  // As named_parameters() lists them.
  std::vector<const ParameterRow*> trained() const;
};

// A row of the parameter table as PEFT sees it.
struct LoraCandidate {
  std::string module;  // "model.layers.{}.mlp.up_proj"
  std::vector<IndexRange> ranges;
  bool adaptable = false;  // a linear, an embedding, a convolution; norms are none
  bool linear = false;  // one of "all-linear"
};
// Every module with a weight, in the order of the table.
std::vector<LoraCandidate> lora_candidates(const ModelSpec& model);

// PEFT's own targets for the model_type (peft/utils/constants.py). Error{bad_input}: it has none.
std::vector<std::string> default_lora_targets(const ModelSpec& model);

// What is adapted where nobody says it: "all-linear", of a model with stacked experts "attention".
const char* usual_lora_target(const ModelSpec& model);

// Modules of which a copy is trained where nobody says it: a classifier (peft 0.21, peft_model.py,
// PeftModelForSequenceClassification).
std::vector<std::string> usual_modules_to_save(const ModelSpec& model);

// The modules that `lora.targets` name, in the order of the parameter table:
// - "all-linear": every linear module except the output head (peft/tuners/tuners_utils.py);
// - "attention": the linear modules inside attention blocks;
// - else a module's whole name or its last parts ("q_proj", "mlp.c_proj", "layers.3.mlp.up_proj");
// - no targets: PEFT's default for the model_type (peft/utils/constants.py).
// None of an adapter that learns a prompt (prompt_adapters.h).
// Error{unsupported}: "all-linear" of stacked experts, which PEFT adapts too.
// Parameter names are those of PEFT's adapter file ("base_model.model.….lora_A.weight"). Routed
// experts count one pair for each expert matrix: r · (in + out).
// Error{bad_input}: a target that no module has (with the nearest one), rank < 1, no default.
std::vector<LoraModule> lora_modules(const ModelSpec& model, const Lora& lora);

// Whether PEFT trains a copy of the row's module beside the original (peft/utils/other.py,
// _set_trainable: a name ends with one of modules_to_save).
bool is_saved(const Lora& lora, const ParameterRow& row);

// The option beyond plain adapters that is asked for; nullptr: none.
const char* further_option(const Lora& lora);

// Error{bad_input}: a module to save that no row has, or that is adapted too. Error{unsupported}: a
// copy that is not planned.
void check_saved(const ModelSpec& model, const Lora& lora, const std::vector<LoraModule>& modules);

Count lora_parameter_count(const std::vector<LoraModule>& modules);

}  // namespace plimsoll::models
