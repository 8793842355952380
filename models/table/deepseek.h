// DeepSeek's multi-head latent attention and mixture of fine-grained experts.
#pragma once

#include "models/table/table.h"

namespace plimsoll::models::families {

// The defaults that differ between DeepSeek-V2 and V3.
struct DeepSeek {
  std::int64_t vocab, hidden, ffn, expert_ffn, layers, heads, experts, shared_experts, active;
  std::int64_t dense_layers;  // first_k_dense_replace
  std::int64_t positions;
  bool mlp_bias;  // the config has such a field
  bool correction_bias;  // the router's e_score_correction_bias
};

void add_deepseek(ModelSpec& model, const Config& config, Head head, DeepSeek defaults);

}  // namespace plimsoll::models::families
