#include "models/table/table.h"

namespace plimsoll::models::families {

namespace {
// Global and local attention have the same parameters, so attention_types does not matter here.
void build(const Config& config, Head head, ModelSpec& model) {
  const Key head_count{"num_heads", "num_attention_heads"};
  const std::int64_t hidden = config.count("hidden_size", 2048);
  config.check_divides(head_count, config.count(head_count, 16), "hidden_size", hidden);
  const std::int64_t ffn = config.optional_count("intermediate_size", checked_multiply(4, hidden));
  const std::int64_t vocab = config.count("vocab_size", 50257);
  const std::int64_t positions = config.count("max_position_embeddings", 2048);
  const std::int64_t layers = config.repeats({"num_layers", "num_hidden_layers"}, 24);
  Table table;
  table.inside(head == Head::base ? "" : "transformer", [&] {
    table.embedding("wte", vocab, hidden);
    table.embedding("wpe", positions, hidden);
    table.repeat("h", layers, [&] {
      table.layer_norm("ln_1", hidden);
      table.inside("attn.attention", [&] {
        for (const char* name : {"k_proj", "v_proj", "q_proj"}) table.linear(name, hidden, hidden);
        table.linear("out_proj", hidden, hidden, true);
      });
      table.layer_norm("ln_2", hidden);
      table.linear("mlp.c_fc", hidden, ffn, true);
      table.linear("mlp.c_proj", ffn, hidden, true);
    });
    table.layer_norm("ln_f", hidden);
  });
  if (head == Head::language_model)
    table.head("lm_head", hidden, vocab, config.flag("tie_word_embeddings", true));
  add_classifier(table, config, head, hidden);
  model.parameters = table.take();
  model.max_positions = positions;
}
}  // namespace

Family gpt_neo() {
  return {.model_type = "gpt_neo",
          .architectures = decoder_classes("GPTNeo"),
          .lora_targets = {"q_proj", "v_proj"},
          .build = build};
}

}  // namespace plimsoll::models::families
