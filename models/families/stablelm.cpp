#include "models/table/llama_like.h"

namespace plimsoll::models::families {

namespace {
void add_block(Table& table, const Config& config, const LlamaLike& d) {
  add_llama_attention(table, d);
  // One LayerNorm without bias for each head (StableLM 2 12B).
  if (config.flag("qk_layernorm", false)) {
    table.repeat("self_attn.q_layernorm.norms", d.heads,
                 [&] { table.parameter("weight", {d.head_dim}, ModuleKind::norm); });
    table.repeat("self_attn.k_layernorm.norms", d.kv_heads,
                 [&] { table.parameter("weight", {d.head_dim}, ModuleKind::norm); });
  }
  table.inside("mlp", [&] { add_gated_mlp(table, d.hidden, d.ffn); });
  table.layer_norm("input_layernorm", d.hidden);
  if (!config.flag("use_parallel_residual", false))
    table.layer_norm("post_attention_layernorm", d.hidden);
}

void build(const Config& config, Head head, ModelSpec& model) {
  LlamaLike llama = read_llama_like(
      config, {.vocab = 50304, .hidden = 2560, .ffn = 6912, .kv_heads = 32, .positions = 4096});
  llama.head_dim = llama.hidden / llama.heads;  // the family has no head_dim of its own
  llama.qkv_bias = config.flag("use_qkv_bias", false);
  Table table;
  table.inside(head == Head::base ? "" : "model", [&] {
    table.embedding("embed_tokens", llama.vocab, llama.hidden);
    table.repeat("layers", llama.layers, [&] { add_block(table, config, llama); });
    table.layer_norm("norm", llama.hidden);
  });
  if (head == Head::language_model) table.head("lm_head", llama.hidden, llama.vocab, llama.tied);
  add_classifier(table, config, head, llama.hidden, "score");
  model.parameters = table.take();
  model.max_positions = llama.positions;
}
}  // namespace

Family stablelm() {
  return {.model_type = "stablelm",
          .architectures = decoder_classes("StableLm"),
          .lora_targets = {"q_proj", "v_proj"},
          .build = build};
}

}  // namespace plimsoll::models::families
