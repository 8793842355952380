// Qwen's mixtures: some layers have routed experts (and a shared one), the others a plain MLP.
#pragma once

#include "models/table/llama_like.h"

namespace plimsoll::models::families {

// Reads num_experts, num_experts_per_tok, moe_intermediate_size, decoder_sparse_step and
// mlp_only_layers, and builds the whole table. `shared_ffn`: width of the shared expert; 0: none.
// Returns which layers have experts.
std::vector<bool> add_qwen_moe(ModelSpec& model, const Config& config, Head head,
                               const LlamaLike& llama, std::int64_t experts,
                               std::int64_t expert_ffn, std::int64_t active,
                               std::int64_t shared_ffn);

}  // namespace plimsoll::models::families
