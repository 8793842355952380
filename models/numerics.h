// The facts of a decoder that change its numbers but not its bytes: what the runtime needs beyond
// models/decoder.h. Read from the same config.json, with the defaults of Transformers 5.17.
#pragma once

#include <cstdint>
#include <optional>

namespace plimsoll::models {

// Rotation of q and k: frequency i of d / 2 is theta^(-2i / d), then Llama 3's scaling
// (transformers/modeling_rope_utils.py, _compute_llama3_parameters): wave lengths above
// original_positions / low_factor are stretched by `factor`, those below original_positions /
// high_factor stay, between them the two are blended. Factor 1: no scaling; original_positions 0:
// all are stretched ("linear").
struct Rotary {
  double theta = 10000;
  double factor = 1;
  double low_factor = 1, high_factor = 4;
  std::int64_t original_positions = 8192;
  bool operator==(const Rotary&) const = default;
};

// How weights begin, where no checkpoint says so: models/initial_values.h applies it.
struct Initialization {
  double deviation = 0.02;  // of the normal distribution that matrices and tables are drawn from
  // What the deviation of the GEMMs into the residual stream is divided by: GPT-2's
  // sqrt(2 · layers); else 1.
  double residual_divisor = 1;
  double norm_weight = 1;  // 0 where it is added to 1 (Gemma)
  // Row of the embedding that is 0: torch.nn.Embedding's padding_idx.
  std::optional<std::int64_t> padding_row;
  bool operator==(const Initialization&) const = default;
};

struct Numerics {
  double norm_eps = 1e-5;  // of all norms
  std::optional<Rotary> rotary;  // where Decoder::position is rope
  std::optional<Rotary> local_rotary;  // of layers with the window (Decoder::local_rotary)
  double attention_scale = 1;  // of q · k
  // What the embeddings, the branches before they are added to the stream, and the logits are
  // multiplied with. The first is rounded to the stream's dtype where Decoder::embedding_scale says
  // so (Gemma).
  double embedding_scale = 1, residual_scale = 1, logits_scale = 1;
  // Scores (Node::soft_cap) and logits become cap · tanh(x / cap) (Gemma 2); 0: they stay.
  double attention_cap = 0, logits_cap = 0;
  Initialization initialization;
  bool operator==(const Numerics&) const = default;
};

}  // namespace plimsoll::models
