#include "models/table/llama_like.h"

namespace plimsoll::models::families {

namespace {
// Llama with q, k, v in one matrix and gate, up in another.
void add_block(Table& table, const LlamaLike& d) {
  const std::int64_t q_width = checked_multiply(d.heads, d.head_dim);
  const std::int64_t kv_width = checked_multiply(d.kv_heads, d.head_dim);
  table.linear("self_attn.o_proj", q_width, d.hidden);
  table.linear("self_attn.qkv_proj", d.hidden, checked_add(q_width, checked_multiply(2, kv_width)));
  table.linear("mlp.gate_up_proj", d.hidden, checked_multiply(2, d.ffn));
  table.linear("mlp.down_proj", d.ffn, d.hidden);
  table.rms_norm("input_layernorm", d.hidden);
  table.rms_norm("post_attention_layernorm", d.hidden);
}

void build(const Config& config, Head head, ModelSpec& model) {
  const LlamaLike phi =
      read_llama_like(config, {.vocab = 32064, .hidden = 3072, .ffn = 8192, .positions = 4096});
  Table table;
  table.inside(head == Head::base ? "" : "model", [&] {
    table.embedding("embed_tokens", phi.vocab, phi.hidden);
    table.repeat("layers", phi.layers, [&] { add_block(table, phi); });
    table.rms_norm("norm", phi.hidden);
  });
  if (head == Head::language_model) table.head("lm_head", phi.hidden, phi.vocab, phi.tied);
  add_classifier(table, config, head, phi.hidden, "score");
  model.parameters = table.take();
  model.max_positions = phi.positions;
}
}  // namespace

Family phi3() {
  return {.model_type = "phi3",
          .architectures = decoder_classes("Phi3"),
          .lora_targets = {},
          .build = build};
}

}  // namespace plimsoll::models::families
