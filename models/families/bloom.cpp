#include "models/table/table.h"

namespace plimsoll::models::families {

namespace {
// ALiBi: no position table, any length.
void build(const Config& config, Head head, ModelSpec& model) {
  const Key width{"hidden_size", "n_embed"}, head_count{"n_head", "num_attention_heads"};
  const std::int64_t hidden = config.count(width, 64);
  config.check_divides(head_count, config.count(head_count, 8), width, hidden);
  const std::int64_t ffn = checked_multiply(4, hidden);
  const std::int64_t vocab = config.count("vocab_size", 250880);
  const std::int64_t layers = config.repeats({"n_layer", "num_hidden_layers"}, 2);
  Table table;
  table.inside(head == Head::base ? "" : "transformer", [&] {
    table.embedding("word_embeddings", vocab, hidden);
    table.layer_norm("word_embeddings_layernorm", hidden);
    table.repeat("h", layers, [&] {
      table.layer_norm("input_layernorm", hidden);
      table.linear("self_attention.query_key_value", hidden, checked_multiply(3, hidden), true);
      table.linear("self_attention.dense", hidden, hidden, true);
      table.layer_norm("post_attention_layernorm", hidden);
      table.linear("mlp.dense_h_to_4h", hidden, ffn, true);
      table.linear("mlp.dense_4h_to_h", ffn, hidden, true);
    });
    table.layer_norm("ln_f", hidden);
  });
  if (head == Head::language_model)
    table.head("lm_head", hidden, vocab, config.flag("tie_word_embeddings", true));
  add_classifier(table, config, head, hidden);
  model.parameters = table.take();
}
}  // namespace

Family bloom() {
  return {.model_type = "bloom",
          .architectures = decoder_classes("Bloom"),
          .lora_targets = {"query_key_value"},
          .build = build};
}

}  // namespace plimsoll::models::families
