#include "models/table/table.h"

namespace plimsoll::models::families {

namespace {
struct Dimensions {
  std::int64_t hidden, ffn, embedding;
  bool bias, affine;  // of linears; norms with parameters
};

void add_norm(Table& table, const char* name, const Dimensions& d) {
  if (d.affine) table.layer_norm(name, d.hidden);
}

void add_block(Table& table, const Dimensions& d) {
  table.inside("self_attn", [&] {
    for (const char* name : {"k_proj", "v_proj", "q_proj", "out_proj"})
      table.linear(name, d.hidden, d.hidden, d.bias);
  });
  add_norm(table, "self_attn_layer_norm", d);
  table.linear("fc1", d.hidden, d.ffn, d.bias);
  table.linear("fc2", d.ffn, d.hidden, d.bias);
  add_norm(table, "final_layer_norm", d);
}

// OPT-350m: embeddings narrower than the model, norms after each sublayer and none at the end.
void build(const Config& config, Head head, ModelSpec& model) {
  Dimensions d{};
  d.hidden = config.count("hidden_size", 768);
  d.ffn = config.count("ffn_dim", 3072);
  d.embedding = config.optional_count("word_embed_proj_dim",
                                      config.mentions("word_embed_proj_dim") ? d.hidden : 768);
  d.bias = config.flag("enable_bias", true);
  d.affine = config.flag("layer_norm_elementwise_affine", true);
  config.check_divides("num_attention_heads", config.count("num_attention_heads", 12),
                       "hidden_size", d.hidden);
  const std::int64_t vocab = config.count("vocab_size", 50272);
  const std::int64_t positions = config.count("max_position_embeddings", 2048);
  const bool final_norm =
      config.flag("do_layer_norm_before", true) && !config.flag("_remove_final_layer_norm", false);
  Table table;
  table.inside(head == Head::base ? "decoder" : "model.decoder", [&] {
    table.embedding("embed_tokens", vocab, d.embedding);
    table.embedding("embed_positions", checked_add(positions, 2), d.hidden);  // two for padding
    if (d.embedding != d.hidden) {
      table.linear("project_out", d.hidden, d.embedding);
      table.linear("project_in", d.embedding, d.hidden);
    }
    if (final_norm) add_norm(table, "final_layer_norm", d);
    table.repeat("layers", config.repeats("num_hidden_layers", 12), [&] { add_block(table, d); });
  });
  if (head == Head::language_model)
    table.head("lm_head", d.embedding, vocab, config.flag("tie_word_embeddings", true));
  add_classifier(table, config, head, d.embedding);
  model.parameters = table.take();
  model.max_positions = positions;
}
}  // namespace

Family opt() {
  return {.model_type = "opt",
          .architectures = {{"OPTForCausalLM", Head::language_model},
                            {"OPTModel", Head::base},
                            {"OPTForSequenceClassification", Head::sequence_classification}},
          .lora_targets = {"q_proj", "v_proj"},
          .build = build};
}

}  // namespace plimsoll::models::families
