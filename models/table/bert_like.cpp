#include "models/table/bert_like.h"

namespace plimsoll::models::families {

namespace {
void add_attention(Table& table, const BertLike& d, bool relative) {
  table.linear("self.query", d.hidden, d.hidden, true);
  table.linear("self.key", d.hidden, d.hidden, true);
  table.linear("self.value", d.hidden, d.hidden, true);
  if (relative)
    table.embedding("self.distance_embedding", checked_multiply(2, d.positions) - 1,
                    d.hidden / d.heads);
  table.linear("output.dense", d.hidden, d.hidden, true);
  table.layer_norm("output.LayerNorm", d.hidden);
}
}  // namespace

BertLike read_bert_like(const Config& config, BertLike d) {
  d.vocab = config.count("vocab_size", d.vocab);
  d.hidden = config.count("hidden_size", 768);
  d.ffn = config.count("intermediate_size", 3072);
  d.layers = config.repeats("num_hidden_layers", 12);
  d.heads = config.count("num_attention_heads", 12);
  d.positions = config.count("max_position_embeddings", d.positions);
  d.types = config.count("type_vocab_size", d.types);
  d.cross_attention = config.flag("add_cross_attention", false);
  const std::string kind = config.text("position_embedding_type", "absolute");
  d.relative_positions = kind == "relative_key" || kind == "relative_key_query";
  d.tied = config.flag("tie_word_embeddings", true);
  config.check_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  if (d.cross_attention && !config.flag("is_decoder", false))
    config.refuse("add_cross_attention", "is_decoder as well");
  return d;
}

void add_bert_encoder(Table& table, const BertLike& d, bool pooler) {
  table.inside("embeddings", [&] {
    table.embedding("word_embeddings", d.vocab, d.hidden);
    table.embedding("position_embeddings", d.positions, d.hidden);
    table.embedding("token_type_embeddings", d.types, d.hidden);
    table.layer_norm("LayerNorm", d.hidden);
  });
  table.repeat("encoder.layer", d.layers, [&] {
    table.inside("attention", [&] { add_attention(table, d, d.relative_positions); });
    if (d.cross_attention) table.inside("crossattention", [&] { add_attention(table, d, false); });
    table.linear("intermediate.dense", d.hidden, d.ffn, true);
    table.linear("output.dense", d.ffn, d.hidden, true);
    table.layer_norm("output.LayerNorm", d.hidden);
  });
  if (pooler) table.linear("pooler.dense", d.hidden, d.hidden, true);
}

void add_tied_decoder(Table& table, const BertLike& d, std::string_view module,
                      std::string_view bias) {
  table.parameter(bias, {d.vocab}, ModuleKind::head);
  table.head(module, d.hidden, d.vocab, d.tied);
  table.parameter(std::string(module) + ".bias", {d.vocab}, ModuleKind::head).tied = true;
}

}  // namespace plimsoll::models::families
