#include "models/table/table.h"

namespace plimsoll::models::families {

namespace {
// GPT-2 with ordinary linears and one key/value head for all queries (multi_query).
void build(const Config& config, Head head, ModelSpec& model) {
  const Key width{"n_embd", "hidden_size"}, head_count{"n_head", "num_attention_heads"};
  const std::int64_t hidden = config.count(width, 768);
  const std::int64_t heads = config.count(head_count, 12);
  config.check_divides(head_count, heads, width, hidden);
  const std::int64_t ffn = config.optional_count("n_inner", checked_multiply(4, hidden));
  const std::int64_t kv = config.flag("multi_query", true) ? hidden / heads : hidden;
  const std::int64_t vocab = config.count("vocab_size", 50257);
  const std::int64_t positions = config.count({"n_positions", "max_position_embeddings"}, 1024);
  const std::int64_t layers = config.repeats({"n_layer", "num_hidden_layers"}, 12);
  const bool tied = config.flag("tie_word_embeddings", true);
  Table table;
  table.inside(head == Head::base ? "" : "transformer", [&] {
    table.embedding("wte", vocab, hidden);
    table.embedding("wpe", positions, hidden);
    table.repeat("h", layers, [&] {
      table.layer_norm("ln_1", hidden);
      table.linear("attn.c_attn", hidden, checked_add(hidden, checked_multiply(2, kv)), true);
      table.linear("attn.c_proj", hidden, hidden, true);
      table.layer_norm("ln_2", hidden);
      table.linear("mlp.c_fc", hidden, ffn, true);
      table.linear("mlp.c_proj", ffn, hidden, true);
    });
    table.layer_norm("ln_f", hidden);
  });
  if (head == Head::language_model) table.head("lm_head", hidden, vocab, tied);
  add_classifier(table, config, head, hidden);
  if (config.flag("add_cross_attention", false)) config.refuse("add_cross_attention", "false");
  model.parameters = table.take();
  model.max_positions = positions;
}
}  // namespace

Family gpt_bigcode() {
  return {.model_type = "gpt_bigcode",
          .architectures = decoder_classes("GPTBigCode"),
          .lora_targets = {"c_attn"},
          .build = build};
}

}  // namespace plimsoll::models::families
