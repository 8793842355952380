// The facts of a decoder-only transformer that decide what its training step computes.
#pragma once

#include <cstdint>

namespace plimsoll::models {

enum class NormKind : std::uint8_t {  // as ModuleClass's
  layer_norm,
  rms_norm,
  rms_norm_fp32,
  rms_norm_one_plus,
  rms_norm_inline,
  rms_norm_fused,
  rms_norm_composite,
  rms_norm_product,
  rms_norm_product_low
};
constexpr bool multiplies_in_fp32(NormKind kind) {
  return kind == NormKind::rms_norm_fp32 || kind == NormKind::rms_norm_one_plus ||
         kind == NormKind::rms_norm_composite || kind == NormKind::rms_norm_product;
}
constexpr bool is_rms(NormKind kind) {
  return kind != NormKind::layer_norm;
}
// counted: learned, of positions counted along each sequence's attention mask (OPT). alibi: biases
// of the scores by distance, of positions counted so (BLOOM).
enum class PositionKind : std::uint8_t { learned, counted, rope, alibi };
// Who multiplies the embedding with a scalar: its own module (Gemma), or the model (Granite).
enum class EmbeddingScale : std::uint8_t { none, module, model };
enum class MlpKind : std::uint8_t { gelu_tanh, gelu, relu, swiglu };

// GPT-2 and Llama-like blocks: norm -> attention -> + -> norm -> MLP -> +. Axes are element counts.
struct Decoder {
  std::int64_t hidden = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;  // of a head's elements, how many are rotated; 0: all
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  std::int64_t window = 0;  // sliding window of attention in tokens; 0: none
  std::int64_t full_layers = 0;  // with a window: how many layers attend to everything nevertheless
  bool local_rotary = false;  // layers with the window have rotary tables of their own
  bool embedding_norm = false;  // the embedding goes through a norm of its own
  // Rows of BERT's table of token types, whose ids and the positions are buffers; 0: there is none.
  std::int64_t token_types = 0;
  bool bidirectional = false;  // attention sees what comes later, too: no mask without padding
  bool head_transform = false;  // a product, GELU and the last norm stand before the head's GEMM
  // Of the token table, where it is not `hidden`: a projection stands behind it, another one in the
  // last norm's place (OPT-350m). 0: `hidden`.
  std::int64_t embedding_width = 0;
  // The model makes no positions, tables or padded labels, SDPA reads what the layer's nodes made,
  // and the loop over the layers holds the stream alone; rotation multiplies with a buffer; the
  // loss is made when the model has returned.
  bool bare = false;
  // Ranks that share each sequence between the blocks: what is neither attention nor MLP is of one
  // part of it (tensor parallelism with torch's SequenceParallel). Heads, ffn and vocab are then a
  // rank's own.
  std::int64_t sequence_parts = 1;
  // The model's frame holds the stream behind the last layer until it returns, and what the head
  // makes is widened, or made in parts of the tokens, before that.
  bool holds_stream = false;
  bool repeats_groups = false;  // keys and values, for SDPA: whatever the release says
  bool repeats_heads_first = false;  // as [batch, heads, s, d], one after the other
  bool masked_loss = false;  // cross entropy of the logits as they are, with labels as they are
  // Classes of a sequence, which the head tells of its last token's logits; 0: a language model.
  std::int64_t labels = 0;
  // BERT's: a product and tanh of each sequence's first token stand before a classifier.
  bool pooled = false;
  double classifier_dropout = 0;
  // GPT-BigCode before kLossPadsLabels: cross entropy of the logits as they are; and what a layer
  // returns to the cache, in elements a token, whether it trains or not.
  bool low_loss_once = false;
  std::int64_t cached_once = 0;
  EmbeddingScale embedding_scale = EmbeddingScale::none;
  bool scaled_logits = false;  // divided by a scalar
  bool soft_capped_logits = false;  // they go through a scaled tanh
  NormKind norm = NormKind::rms_norm;
  PositionKind position = PositionKind::rope;
  MlpKind mlp = MlpKind::swiglu;
  bool fused_qkv = false;  // GPT-2's c_attn: one [h, 3h] GEMM
  bool qkv_bias = false;
  bool out_bias = false;  // attention's output projection
  bool mlp_bias = false;
  bool qk_norm = false;  // RMSNorm on q and k: a head's (Qwen3), or all at once (OLMo 2)
  std::int64_t rotary_rows = 0;  // of a buffer of cosines and sines in fp32; 0: there is none
  bool fp32_rotary = false;  // cos and sin stay in fp32 whatever the stream's dtype is
  bool half_rotary = false;  // they have an element for each pair that is turned
  bool tied_head = false;
  bool eager_attention = false;  // Transformers has no SDPA for it
  bool masks_first = false;  // attention masks are made before positions are embedded
  bool masks_without_positions = false;  // whatever these are: no sample is told from another
  bool causal_table = false;  // GPT-BigCode's buffer of booleans [positions, positions]
  // GPT-2's activation written in Python ("gelu_new"): eager PyTorch keeps its intermediate values.
  bool python_gelu = false;
  double embedding_dropout = 0;
  double attention_dropout = 0;
  double residual_dropout = 0;

  // The model makes a padding mask of ones and counts positions along it.
  bool counts_positions() const {
    return position == PositionKind::counted || position == PositionKind::alibi;
  }
  std::int64_t table_width() const { return embedding_width > 0 ? embedding_width : hidden; }
  // Rows of that table before position 0's: modeling_opt.py, OPTLearnedPositionalEmbedding.offset.
  std::int64_t first_position() const { return position == PositionKind::counted ? 2 : 0; }
  // Has it a table of learned positions?
  bool embeds_positions() const {
    return position == PositionKind::learned || position == PositionKind::counted;
  }
  // Rotary tables for layers with the window and for the others.
  bool has_both_rotaries() const { return local_rotary && window > 0 && full_layers > 0; }
  std::int64_t q_width() const { return heads * head_dim; }
  std::int64_t rotated() const { return rotary_dim > 0 ? rotary_dim : head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  bool operator==(const Decoder&) const = default;
};

}  // namespace plimsoll::models
