#include "models/table/table.h"

namespace plimsoll::models::families {

namespace {
void build(const Config& config, Head head, ModelSpec& model) {
  const std::int64_t hidden = config.count("hidden_size", 6144);
  config.check_divides("num_attention_heads", config.count("num_attention_heads", 64),
                       "hidden_size", hidden);
  const std::int64_t ffn = config.count("intermediate_size", 24576);
  const std::int64_t vocab = config.count("vocab_size", 50432);
  const std::int64_t layers = config.repeats("num_hidden_layers", 44);
  const bool bias = config.flag("attention_bias", true);
  Table table;
  table.inside(head == Head::base ? "" : "gpt_neox", [&] {
    table.embedding("embed_in", vocab, hidden);
    table.repeat("layers", layers, [&] {
      table.layer_norm("input_layernorm", hidden);
      table.layer_norm("post_attention_layernorm", hidden);
      table.linear("attention.query_key_value", hidden, checked_multiply(3, hidden), bias);
      table.linear("attention.dense", hidden, hidden, bias);
      table.linear("mlp.dense_h_to_4h", hidden, ffn, true);
      table.linear("mlp.dense_4h_to_h", ffn, hidden, true);
    });
    table.layer_norm("final_layer_norm", hidden);
  });
  if (head == Head::language_model)
    table.head("embed_out", hidden, vocab, config.flag("tie_word_embeddings", false));
  add_classifier(table, config, head, hidden);
  model.parameters = table.take();
  model.max_positions = config.count("max_position_embeddings", 2048);
}
}  // namespace

Family gpt_neox() {
  return {.model_type = "gpt_neox",
          .architectures = decoder_classes("GPTNeoX"),
          .lora_targets = {"query_key_value"},
          .build = build};
}

}  // namespace plimsoll::models::families
