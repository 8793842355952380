// Readers of models/numerics.h, for the families whose training step can be run. They throw
// Error{unsupported} or {bad_input} naming the field; the model is then planned, but not run.
#pragma once

#include "models/config_reader.h"
#include "models/model_spec.h"

namespace plimsoll::models::families {

// Llama, Mistral, Qwen2, Qwen3: "rms_norm_eps", "rope_theta" with "rope_scaling" (as on the
// hub) or "rope_parameters" (as Transformers 5 writes), "initializer_range", "pad_token_id".
Numerics llama_numerics(const Config& config, const ModelSpec& model);

Numerics olmo2_numerics(const Config& config, const ModelSpec& model);
Numerics mixtral_numerics(const Config& config, const ModelSpec& model);
Numerics phi3_numerics(const Config& config, const ModelSpec& model);
// The same and "attention_multiplier", "embedding_multiplier", "residual_multiplier",
// "logits_scaling".
Numerics granite_numerics(const Config& config, const ModelSpec& model);
// The same; embeddings times the root of their width, norms that begin at 0.
Numerics gemma_numerics(const Config& config, const ModelSpec& model);
// Soft caps of scores and logits, and "query_pre_attn_scalar".
Numerics gemma2_numerics(const Config& config, const ModelSpec& model);
// Of its own rotations, and "query_pre_attn_scalar".
Numerics gemma3_numerics(const Config& config, const ModelSpec& model);

// OPT: "init_std", "pad_token_id"; norms as torch.nn.LayerNorm has them.
Numerics opt_numerics(const Config& config, const ModelSpec& model);

// LayerNorms with "layer_norm_eps", a rotation of a part of each head; GPT-NeoX: "rotary_emb_base".
Numerics phi_numerics(const Config& config, const ModelSpec& model);
Numerics gpt_neox_numerics(const Config& config, const ModelSpec& model);

// GPT-2, GPT-BigCode: "layer_norm_epsilon", "scale_attn_weights", "initializer_range".
Numerics gpt2_numerics(const Config& config, const ModelSpec& model);

}  // namespace plimsoll::models::families
