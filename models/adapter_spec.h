// Which adapters a run trains.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/base/dtype.h"

namespace plimsoll::models {

// What PEFT trains beside a frozen base: pairs of matrices of a low rank (LoRA and DoRA); a vector
// that scales what a module makes or reads (IA3); two vectors between frozen matrices of a low rank
// that all modules share (VeRA); embeddings of virtual tokens in front of each sequence (prompt
// tuning), or those and the perceptron that makes them (P-tuning); keys and values of virtual
// tokens in front of each layer's own, perhaps made by a perceptron (prefix tuning).
enum class AdapterKind : std::uint8_t { lora, ia3, vera, prompt_tuning, p_tuning, prefix_tuning };

struct Lora {
  AdapterKind kind = AdapterKind::lora;
  std::int64_t rank = 8;  // of matrices; so are alpha and dropout
  double alpha = 16;
  double dropout = 0;
  DType dtype = DType::fp32;  // of the adapter weights (PEFT upcasts 16-bit ones to fp32)
  std::vector<std::string> targets;  // module name suffixes, or "all-linear", or "attention"
  std::vector<std::string> modules_to_save;  // whose copies are trained beside the frozen originals
  // target_parameters: stacked experts with adapters
  std::vector<std::string> parameters;
  bool bias = false;  // lora_bias: B has one
  bool dora = false;  // use_dora
  std::int64_t adapters = 1;  // LoRA: how many there are; the others are frozen beside the first
  std::vector<std::string> feedforward;  // IA3: of the targets, those whose input is scaled
  std::int64_t virtual_tokens = 0;  // of what learns a prompt: in front of each sequence
  // Width of the perceptron's inner layers: P-tuning's two, prefix tuning's one (0: it has none).
  std::int64_t encoder_hidden = 0;
  bool operator==(const Lora&) const = default;
};

}  // namespace plimsoll::models
