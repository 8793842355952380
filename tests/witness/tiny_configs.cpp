// The tiny models of workloads that are not drawn.
#include <map>

#include "tests/witness/case.h"

namespace plimsoll::witness {

namespace {

// Head dimension 8, three layers, sizes that no number of ranks divides.
const std::map<std::string, std::string> kConfigs{
    {"gpt2",
     R"({"model_type": "gpt2", "n_embd": 24, "n_head": 3, "n_layer": 3, "vocab_size": 61,
         "n_positions": 32, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0})"},
    {"gpt2-dropout",
     R"({"model_type": "gpt2", "n_embd": 24, "n_head": 3, "n_layer": 3, "vocab_size": 61,
         "n_positions": 32, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1})"},
    {"llama",
     R"({"model_type": "llama", "hidden_size": 24, "num_attention_heads": 6,
         "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 40, "vocab_size": 67,
         "num_hidden_layers": 3, "max_position_embeddings": 64})"},
    {"gemma",
     R"({"model_type": "gemma", "hidden_size": 24, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 40, "vocab_size": 67,
         "num_hidden_layers": 3, "max_position_embeddings": 64})"},
    {"gemma2",
     R"({"model_type": "gemma2", "hidden_size": 24, "num_attention_heads": 6,
         "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 40, "vocab_size": 67,
         "num_hidden_layers": 4, "max_position_embeddings": 64, "sliding_window": 4,
         "attn_logit_softcapping": 0.5, "final_logit_softcapping": 1})"},
    {"gemma3_text",
     R"({"model_type": "gemma3_text", "hidden_size": 24, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 40, "vocab_size": 67,
         "num_hidden_layers": 5, "max_position_embeddings": 64, "sliding_window": 4,
         "sliding_window_pattern": 2})"},
    {"gpt_bigcode",
     R"({"model_type": "gpt_bigcode", "n_embd": 24, "n_head": 3, "n_layer": 3, "vocab_size": 61,
         "n_positions": 32, "resid_pdrop": 0.1, "embd_pdrop": 0, "attn_pdrop": 0})"},
    {"granite",
     R"({"model_type": "granite", "hidden_size": 24, "num_attention_heads": 6,
         "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 40, "vocab_size": 67,
         "num_hidden_layers": 3, "max_position_embeddings": 64, "residual_multiplier": 0.25,
         "embedding_multiplier": 8, "logits_scaling": 4, "attention_bias": true})"},
    {"phi3",
     R"({"model_type": "phi3", "hidden_size": 24, "num_attention_heads": 3,
         "num_key_value_heads": 1, "intermediate_size": 40, "vocab_size": 67, "resid_pdrop": 0.1,
         "partial_rotary_factor": 0.5, "num_hidden_layers": 3, "max_position_embeddings": 64,
         "pad_token_id": null})"},
    {"mixtral",
     R"({"model_type": "mixtral", "hidden_size": 24, "num_attention_heads": 3,
         "num_key_value_heads": 1, "intermediate_size": 20, "vocab_size": 67,
         "num_hidden_layers": 3, "max_position_embeddings": 64, "num_local_experts": 5,
         "num_experts_per_tok": 2})"},
    {"qwen3_moe",
     R"({"model_type": "qwen3_moe", "hidden_size": 24, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 40, "vocab_size": 67,
         "num_hidden_layers": 4, "max_position_embeddings": 64, "num_experts": 6,
         "num_experts_per_tok": 3, "moe_intermediate_size": 12, "decoder_sparse_step": 2})"},
    {"gpt_neox",
     R"({"model_type": "gpt_neox", "hidden_size": 24, "num_attention_heads": 3,
         "intermediate_size": 40, "vocab_size": 67, "rotary_pct": 0.25, "num_hidden_layers": 3,
         "max_position_embeddings": 64})"},
    {"phi",
     R"({"model_type": "phi", "hidden_size": 24, "num_attention_heads": 6,
         "num_key_value_heads": 2, "intermediate_size": 40, "vocab_size": 67, "resid_pdrop": 0.1,
         "num_hidden_layers": 3, "max_position_embeddings": 64})"},
    {"olmo2",
     R"({"model_type": "olmo2", "hidden_size": 24, "num_attention_heads": 3,
         "num_key_value_heads": 1, "intermediate_size": 40, "vocab_size": 67,
         "num_hidden_layers": 3, "max_position_embeddings": 64})"},
    {"opt",
     R"({"model_type": "opt", "hidden_size": 24, "num_attention_heads": 3, "ffn_dim": 40,
         "vocab_size": 67, "num_hidden_layers": 3, "max_position_embeddings": 30,
         "word_embed_proj_dim": 24, "dropout": 0.1})"},
    {"qwen3",
     R"({"model_type": "qwen3", "hidden_size": 24, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 40, "vocab_size": 67,
         "num_hidden_layers": 3, "max_position_embeddings": 64, "tie_word_embeddings": true})"}};

}  // namespace

std::string tiny_config(const std::string& model) {
  return kConfigs.at(model);
}

void make_again_one_by_one(const std::string& model, models::Recompute& recompute) {
  using models::RecomputeKind;
  const bool together =
      recompute.kind == RecomputeKind::every || recompute.kind == RecomputeKind::sqrt;
  const bool differ = model == "gemma2" || model == "gemma3_text" || model == "qwen3_moe";
  if (differ && together) recompute = {.kind = RecomputeKind::full};
}

}  // namespace plimsoll::witness
