#include "models/table/llama_like.h"

namespace plimsoll::models::families {

namespace {
// Not in Transformers: names and defaults of the model's own code (configuration_internlm2.py and
// modeling_internlm2.py of internlm/internlm2-7b).
void build(const Config& config, Head head, ModelSpec& model) {
  const LlamaLike d = read_llama_like(config, {.vocab = 103168});
  const bool bias = config.flag({"bias", "attention_bias"}, true);
  const std::int64_t q_width = checked_multiply(d.heads, d.head_dim);
  const std::int64_t kv_width = checked_multiply(d.kv_heads, d.head_dim);
  Table table;
  table.inside(head == Head::base ? "" : "model", [&] {
    table.embedding("tok_embeddings", d.vocab, d.hidden);
    table.repeat("layers", d.layers, [&] {
      table.linear("attention.wqkv", d.hidden, checked_add(q_width, checked_multiply(2, kv_width)),
                   bias);
      table.linear("attention.wo", q_width, d.hidden, bias);
      table.linear("feed_forward.w1", d.hidden, d.ffn);
      table.linear("feed_forward.w3", d.hidden, d.ffn);
      table.linear("feed_forward.w2", d.ffn, d.hidden);
      table.rms_norm("attention_norm", d.hidden);
      table.rms_norm("ffn_norm", d.hidden);
    });
    table.rms_norm("norm", d.hidden);
  });
  if (head == Head::language_model) table.head("output", d.hidden, d.vocab, d.tied);
  model.parameters = table.take();
  model.max_positions = d.positions;
}
}  // namespace

Family internlm2() {
  return {.model_type = "internlm2",
          .architectures = {{"InternLM2ForCausalLM", Head::language_model},
                            {"InternLM2Model", Head::base}},
          .lora_targets = {},
          .build = build};
}

}  // namespace plimsoll::models::families
