// Does a checkpoint hold the model that its config describes? Each difference is counted and
// explained.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/model_spec.h"
#include "models/safetensors_reader.h"

namespace plimsoll::models {

enum class DifferenceKind : std::uint8_t {
  naming,  // all names have a prefix too many or too few: matched nevertheless
  mask_buffer,  // causal masks stored beside the weights
  rotary_buffer,  // inv_freq and its like
  index_buffer,  // position_ids
  tied_copy,  // one tensor under two names, stored twice
  quantized,  // packed weights, their scales and zero points
  other_part,  // of another head or tower than the architecture's
  more_layers,  // beyond the config's (multi-token prediction)
  dtype,  // stored in another type than the config says
  missing,
  extra,
  shape,
};
std::string_view name_of(DifferenceKind kind);

struct Difference {
  DifferenceKind kind;
  std::string pattern;  // of the tensors, numbers as "{}": "h.{}.attn.bias"
  std::int64_t tensors = 0;
  Count elements;  // stored less expected
  std::string text;  // one line for the user
};

// A tensor of the checkpoint that is a parameter of the model, by name; its shape may differ.
struct Match {
  std::string parameter;  // its whole name in the table
  std::size_t row = 0;  // of ModelSpec::parameters
  std::size_t tensor = 0;  // of Checkpoint::tensors
};

struct CheckpointCheck {
  Count model_parameters;
  Count stored_elements;  // 0 where only an index is there
  std::vector<Difference> differences;
  std::vector<Match> matches;  // in the order of the checkpoint
  // Nothing missing, nothing extra, no other shape: what differs is explained and harmless.
  bool agrees() const;
  // stored_elements - model_parameters - what the differences add up to; 0 unless a shape is
  // unknown.
  Count unexplained;
};

CheckpointCheck check_checkpoint(const ModelSpec& model, const Checkpoint& checkpoint);

}  // namespace plimsoll::models
