#include "models/table/llama_like.h"

namespace plimsoll::models::families {

namespace {
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
}
}  // namespace

Family olmo2() {
  return {.model_type = "olmo2",
          .architectures = {{"Olmo2ForCausalLM", Head::language_model}, {"Olmo2Model", Head::base}},
          .lora_targets = {},
          .build = build};
}

}  // namespace plimsoll::models::families
