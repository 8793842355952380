#include "models/table/llama_like.h"
#include "models/table/numerics.h"

namespace plimsoll::models::families {

namespace {
// transformers models/olmo2/modeling_olmo2.py, Olmo2DecoderLayer.forward: the projections read the
// stream, norms follow the branches. self_attn norms queries and keys before it views them as
// heads, and rotates in fp32 (apply_rotary_pos_emb, .to(q_type)).
Block block_of(const ModelSpec& model, const LlamaLike& d) {
  BlockBuilder b(model.parameters, d.hidden, ModuleClass::rms_norm_fp32);
  const ValueId q = b.norm("self_attn.q_norm", b.linear("self_attn.q_proj", kBlockInput));
  const ValueId k = b.norm("self_attn.k_norm", b.linear("self_attn.k_proj", kBlockInput));
  const ValueId v = b.linear("self_attn.v_proj", kBlockInput);
  const ValueId q_heads = b.heads("self_attn.q", q);
  const ValueId k_heads = b.heads("self_attn.k", k);
  const ValueId v_heads = b.heads("self_attn.v", v);
  const ValueList rotated = b.rotary("self_attn", q_heads, k_heads, true);
  const ValueList attention =
      b.attention("self_attn", rotated[0], rotated[1], v_heads, EagerSoftmax::fp32);
  const ValueId o = b.linear("self_attn.o_proj", attention[0]);
  b.leave("self_attn", {rotated[0], rotated[1], v_heads});
  const ValueId attended = b.norm("post_attention_layernorm", o);
  const ValueId middle = b.add("self_attn", kBlockInput, attended);
  const ValueId fed = b.norm("post_feedforward_layernorm", gated_mlp(b, middle));
  b.add("mlp", middle, fed);
  b.release({attention[1], kBlockInput});
  return b.take();
}

// Norms after attention and MLP, and over the whole of q and k.
void build(const Config& config, Head head, ModelSpec& model) {
  LlamaLike llama = read_llama_like(config, {.vocab = 50304});
  llama.qkv_bias = llama.out_bias = config.flag("attention_bias", false);
  Table table;
  table.inside(head == Head::base ? "" : "model", [&] {
    table.embedding("embed_tokens", llama.vocab, llama.hidden);
    table.repeat("layers", llama.layers, [&] {
      add_llama_attention(table, llama);
      table.rms_norm("self_attn.q_norm", llama.heads * llama.head_dim);
      table.rms_norm("self_attn.k_norm", llama.kv_heads * llama.head_dim);
      table.inside("mlp", [&] { add_gated_mlp(table, llama.hidden, llama.ffn); });
      table.rms_norm("post_attention_layernorm", llama.hidden);
      table.rms_norm("post_feedforward_layernorm", llama.hidden);
    });
    table.rms_norm("norm", llama.hidden);
  });
  if (head == Head::language_model) table.head("lm_head", llama.hidden, llama.vocab, llama.tied);
  model.parameters = table.take();
  model.max_positions = llama.positions;
  set_llama_decoder(model, head, llama, block_of);
  if (!model.decoder) return;
  model.decoder->norm = NormKind::rms_norm_fp32;
  model.decoder->qk_norm = model.decoder->fp32_rotary = true;
}
}  // namespace

Family olmo2() {
  return {.model_type = "olmo2",
          .architectures = {{"Olmo2ForCausalLM", Head::language_model}, {"Olmo2Model", Head::base}},
          .lora_targets = {},
          .build = build,
          .numerics = olmo2_numerics};
}

}  // namespace plimsoll::models::families
