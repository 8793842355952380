#include "models/table/table.h"

namespace plimsoll::models::families {

namespace {
// Rows of query_key_value: queries of all heads, then keys and values of as many as the variant has
// (transformers/models/falcon/modeling_falcon.py, FalconAttention).
std::int64_t qkv_rows(const Config& config, std::int64_t hidden, std::int64_t heads) {
  const std::int64_t head_dim = hidden / heads;
  if (config.flag("new_decoder_architecture", false)) {
    const std::int64_t kv_heads = config.optional_count("num_kv_heads", heads);
    config.check_divides("num_kv_heads", kv_heads, "num_attention_heads", heads);
    return checked_multiply(checked_add(heads, checked_multiply(2, kv_heads)), head_dim);
  }
  if (config.flag("multi_query", true)) return checked_add(hidden, 2 * head_dim);
  return checked_multiply(3, hidden);
}

void add_norms(Table& table, const Config& config, std::int64_t hidden) {
  const bool two_by_default = config.flag("new_decoder_architecture", false);
  const std::int64_t norms =
      config.optional_count("num_ln_in_parallel_attn", two_by_default ? 2 : 1);
  const bool parallel = config.flag("parallel_attn", true);
  if (!parallel) table.layer_norm("post_attention_layernorm", hidden);
  if (parallel && norms == 2) {
    table.layer_norm("ln_attn", hidden);
    table.layer_norm("ln_mlp", hidden);
  } else {
    table.layer_norm("input_layernorm", hidden);
  }
}

void build(const Config& config, Head head, ModelSpec& model) {
  const Key width{"n_embed", "hidden_size"};
  const std::int64_t hidden = config.count(width, 4544);
  const std::int64_t heads = config.count("num_attention_heads", 71);
  config.check_divides("num_attention_heads", heads, width, hidden);
  const std::int64_t ffn = config.optional_count("ffn_hidden_size", checked_multiply(4, hidden));
  const std::int64_t vocab = config.count("vocab_size", 65024);
  const bool bias = config.flag("bias", false);
  Table table;
  table.inside(head == Head::base ? "" : "transformer", [&] {
    table.embedding("word_embeddings", vocab, hidden);
    table.repeat("h", config.repeats("num_hidden_layers", 32), [&] {
      table.linear("self_attention.query_key_value", hidden, qkv_rows(config, hidden, heads), bias);
      table.linear("self_attention.dense", hidden, hidden, bias);
      table.linear("mlp.dense_h_to_4h", hidden, ffn, bias);
      table.linear("mlp.dense_4h_to_h", ffn, hidden, bias);
      add_norms(table, config, hidden);
    });
    table.layer_norm("ln_f", hidden);
  });
  if (head == Head::language_model)
    table.head("lm_head", hidden, vocab, config.flag("tie_word_embeddings", true));
  add_classifier(table, config, head, hidden);
  model.parameters = table.take();
  const bool alibi = config.flag("alibi", false);
  model.max_positions = alibi ? 0 : config.count("max_position_embeddings", 2048);
}
}  // namespace

Family falcon() {
  return {.model_type = "falcon",
          .architectures = decoder_classes("Falcon"),
          .lora_targets = {"query_key_value"},
          .build = build};
}

}  // namespace plimsoll::models::families
