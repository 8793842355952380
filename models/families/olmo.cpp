#include "models/table/llama_like.h"

namespace plimsoll::models::families {

namespace {
// Its LayerNorms have no parameters.
void build(const Config& config, Head head, ModelSpec& model) {
  LlamaLike llama = read_llama_like(config, {.vocab = 50304});
  llama.qkv_bias = llama.out_bias = config.flag("attention_bias", false);
  Table table;
  table.inside(head == Head::base ? "" : "model", [&] {
    table.embedding("embed_tokens", llama.vocab, llama.hidden);
    table.repeat("layers", llama.layers, [&] {
      add_llama_attention(table, llama);
      table.inside("mlp", [&] { add_gated_mlp(table, llama.hidden, llama.ffn); });
    });
  });
  if (head == Head::language_model) table.head("lm_head", llama.hidden, llama.vocab, llama.tied);
  model.parameters = table.take();
  model.max_positions = llama.positions;
}
}  // namespace

Family olmo() {
  return {.model_type = "olmo",
          .architectures = {{"OlmoForCausalLM", Head::language_model}, {"OlmoModel", Head::base}},
          .lora_targets = {},
          .build = build};
}

}  // namespace plimsoll::models::families
