// The block that Llama made common: RMSNorm, rotary attention with grouped key/value heads, gated
// MLP. Many families are this block with other defaults.
#pragma once

#include <functional>

#include "models/table/block_builder.h"
#include "models/table/table.h"

namespace plimsoll::models::families {

// Sizes and switches; a family fills in its defaults, `read_llama_like` what the config says.
struct LlamaLike {
  std::int64_t vocab = 32000;
  std::int64_t hidden = 4096;
  std::int64_t ffn = 11008;
  std::int64_t layers = 32;
  std::int64_t heads = 32;
  std::int64_t kv_heads = 0;  // 0: as many as heads
  std::int64_t head_dim = 0;  // 0: hidden / heads
  std::int64_t positions = 2048;
  std::int64_t window = 0;  // of every layer; 0: none
  std::int64_t rotary_dim = 0;  // of a head's elements, how many are rotated; 0: all
  bool qkv_bias = false;
  bool out_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;  // over head_dim
  bool sandwich_norms = false;  // Gemma 2's norms before and after the MLP
  bool tied = false;
  double attention_dropout = 0;
  double residual_dropout = 0;
  std::string activation = "silu";
};

// Reads the fields that all of these families share under their Llama names. Checks that heads
// divide. Leaves the biases, qk_norm and window as they are.
LlamaLike read_llama_like(const Config& config, LlamaLike defaults);

// One block's attention: q_proj, k_proj, v_proj, o_proj (and q_norm, k_norm), inside "self_attn".
void add_llama_attention(Table& table, const LlamaLike& llama);
// gate_proj, up_proj, down_proj of a gated MLP.
void add_gated_mlp(Table& table, std::int64_t hidden, std::int64_t ffn, bool bias = false,
                   ModuleKind kind = ModuleKind::linear);

// Everything: embed_tokens, layers, norm and the head. Sets parameters and max_positions.
void add_llama(ModelSpec& model, const Config& config, Head head, const LlamaLike& llama);

// Attention of x: its result, and the probabilities that eager attention returns beside it.
ValueList llama_attention(BlockBuilder& b, const LlamaLike& llama, ValueId x);
// A gated MLP of y, from gate_proj to down_proj, until its Python frame returns. `scattered`: under
// which name ranks that share each sequence sum what down_proj made, if they do.
ValueId gated_mlp(BlockBuilder& b, ValueId y, Activation activation = Activation::silu,
                  const char* scattered = nullptr);
Block llama_block(const ModelSpec& model, const LlamaLike& llama);
// The same with another MLP: of the second norm's result.
Block llama_block(BlockBuilder b, const LlamaLike& llama,
                  const std::function<ValueId(BlockBuilder&, ValueId)>& mlp);

// Sets `decoder` as Llama's layers have it.
void set_llama_facts(ModelSpec& model, const LlamaLike& llama);

// Sets `decoder` and `blocks`, or `no_decoder` where the config leaves what the step program knows.
void set_llama_decoder(ModelSpec& model, Head head, const LlamaLike& llama,
                       Block (*block)(const ModelSpec&, const LlamaLike&) = llama_block);

// Which layers have the window: what "layer_types" says, else `otherwise` of the layer's index.
std::vector<bool> sliding_layers(const Config& config, std::int64_t layers,
                                 const std::function<bool(std::int64_t)>& otherwise);

// The same after Qwen's "use_sliding_window", "sliding_window", "max_window_layers" (so many layers
// attend to everything, those behind them to the window) and "layer_types".
void set_qwen_decoder(ModelSpec& model, const Config& config, Head head, LlamaLike llama);

}  // namespace plimsoll::models::families
