// A decoder's parameters as the parts of its training step: embedding, runs of equal layers, tail.
#pragma once

#include <cstdint>
#include <vector>

#include "models/decoder.h"
#include "models/model_spec.h"
#include "models/run_spec.h"

namespace plimsoll::planner {

// One parameter tensor, of one layer where it belongs to a layer.
struct Parameter {
  std::int64_t elements = 0;
  std::int64_t rows = 1;  // length of axis 0: what FSDP2 shards
  bool trainable = true;
  bool adapter = false;  // LoRA's A and B: stored in the adapter's dtype
  bool operator==(const Parameter&) const = default;
};

// A product with a weight. `in` == 0: the model has no such module.
struct LinearPart {
  std::int64_t in = 0, out = 0;
  bool bias = false;
  bool train_weight = true, train_bias = true;
  std::int64_t lora_rank = 0;
  bool trains() const { return train_weight || (bias && train_bias) || lora_rank > 0; }
  bool operator==(const LinearPart&) const = default;
};

struct NormPart {
  std::int64_t width = 0;  // normalized axis; 0: the model has no such module
  bool bias = false;
  bool train_weight = true, train_bias = true;
  bool trains() const { return width > 0 && (train_weight || (bias && train_bias)); }
  bool operator==(const NormPart&) const = default;
};

// GPT-2's fused c_attn stands in `q`, c_fc in `up`, c_proj in `down`.
struct LayerPart {
  NormPart input_norm, post_norm, q_norm, k_norm;
  LinearPart q, k, v, o, gate, up, down;
  std::vector<Parameter> parameters;
  bool trains() const;
};

// Consecutive equal layers.
struct LayerRun {
  std::int64_t first = 0, count = 0;
  LayerPart layer;
  bool input_grad = true;  // something below is trained, so gradients flow through to the input
};

struct ModelParts {
  models::Decoder decoder;
  LinearPart head;  // tied: train_weight as the embedding's
  NormPart final_norm;
  std::int64_t position_rows = 0;  // learned positions
  bool train_embedding = true, train_positions = true;
  std::vector<Parameter> embedding;  // token and position tables
  std::vector<Parameter> tail;  // final norm, and the head where it is not tied
  std::vector<LayerRun> runs;
  bool train_positions_any() const { return position_rows > 0 && train_positions; }
  bool trains_all = true;  // nothing is frozen
};

// Throws Error{unsupported} where the model has no decoder, Error{bad_input} for patterns and LoRA
// targets that match nothing.
ModelParts model_parts(const models::ModelSpec& model, const models::Strategy& strategy);

// Whether a frozen embedding's output is asked for a gradient, so that checkpoints behind it have
// one. Beside what is trained, this is all of a strategy that the parts depend on.
bool forces_input_gradient(const models::Strategy& strategy);

}  // namespace plimsoll::planner
