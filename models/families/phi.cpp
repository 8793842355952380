#include "models/table/llama_like.h"

namespace plimsoll::models::families {

namespace {
// One norm for attention and MLP in parallel, biases everywhere, also in the head.
void add_block(Table& table, const Config& config, const LlamaLike& d) {
  const std::int64_t q_width = checked_multiply(d.heads, d.head_dim);
  const std::int64_t kv_width = checked_multiply(d.kv_heads, d.head_dim);
  table.inside("self_attn", [&] {
    table.linear("q_proj", d.hidden, q_width, true);
    table.linear("k_proj", d.hidden, kv_width, true);
    table.linear("v_proj", d.hidden, kv_width, true);
    table.linear("dense", q_width, d.hidden, true);
    if (config.flag("qk_layernorm", false)) {
      table.layer_norm("q_layernorm", d.hidden / d.heads);
      table.layer_norm("k_layernorm", d.hidden / d.heads);
    }
  });
  table.linear("mlp.fc1", d.hidden, d.ffn, true);
  table.linear("mlp.fc2", d.ffn, d.hidden, true);
  table.layer_norm("input_layernorm", d.hidden);
}

void build(const Config& config, Head head, ModelSpec& model) {
  const LlamaLike phi =
      read_llama_like(config, {.vocab = 51200, .hidden = 2048, .ffn = 8192, .layers = 24});
  Table table;
  table.inside(head == Head::base ? "" : "model", [&] {
    table.embedding("embed_tokens", phi.vocab, phi.hidden);
    table.repeat("layers", phi.layers, [&] { add_block(table, config, phi); });
    table.layer_norm("final_layernorm", phi.hidden);
  });
  if (head == Head::language_model) table.head("lm_head", phi.hidden, phi.vocab, phi.tied, true);
  add_classifier(table, config, head, phi.hidden, "score");
  model.parameters = table.take();
  model.max_positions = phi.positions;
}
}  // namespace

Family phi() {
  return {.model_type = "phi",
          .architectures = decoder_classes("Phi"),
          .lora_targets = {"q_proj", "v_proj", "fc1", "fc2"},
          .build = build};
}

}  // namespace plimsoll::models::families
