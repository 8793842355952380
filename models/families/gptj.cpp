#include "models/table/table.h"

namespace plimsoll::models::families {

namespace {
// One norm for attention and MLP in parallel; the head has a bias.
void build(const Config& config, Head head, ModelSpec& model) {
  const Key width{"n_embd", "hidden_size"}, head_count{"n_head", "num_attention_heads"};
  const std::int64_t hidden = config.count(width, 4096);
  config.check_divides(head_count, config.count(head_count, 16), width, hidden);
  const std::int64_t ffn = config.optional_count("n_inner", checked_multiply(4, hidden));
  const std::int64_t vocab = config.count("vocab_size", 50400);
  const std::int64_t layers = config.repeats({"n_layer", "num_hidden_layers"}, 28);
  Table table;
  table.inside(head == Head::base ? "" : "transformer", [&] {
    table.embedding("wte", vocab, hidden);
    table.repeat("h", layers, [&] {
      table.layer_norm("ln_1", hidden);
      for (const char* name : {"attn.k_proj", "attn.v_proj", "attn.q_proj", "attn.out_proj"})
        table.linear(name, hidden, hidden);
      table.linear("mlp.fc_in", hidden, ffn, true);
      table.linear("mlp.fc_out", ffn, hidden, true);
    });
    table.layer_norm("ln_f", hidden);
  });
  if (head == Head::language_model)
    table.head("lm_head", hidden, vocab, config.flag("tie_word_embeddings", false), true);
  add_classifier(table, config, head, hidden);
  model.parameters = table.take();
  model.max_positions = config.count({"n_positions", "max_position_embeddings"}, 2048);
}
}  // namespace

Family gptj() {
  return {.model_type = "gptj",
          .architectures = {{"GPTJForCausalLM", Head::language_model},
                            {"GPTJModel", Head::base},
                            {"GPTJForSequenceClassification", Head::sequence_classification}},
          .lora_targets = {"q_proj", "v_proj"},
          .build = build};
}

}  // namespace plimsoll::models::families
