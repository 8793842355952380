#include "models/table/table.h"

namespace plimsoll::models::families {

namespace {
struct Dimensions {
  std::int64_t hidden, inner, ffn, heads, buckets, vocab;
  bool gated;
};

// "relu", "gated-gelu", …: as T5Config takes it apart.
bool is_gated(const Config& config) {
  const std::string text = config.text("feed_forward_proj", "relu");
  const std::size_t dash = text.find('-');
  if (dash == std::string::npos) return false;
  if (text.substr(0, dash) != "gated" || text.find('-', dash + 1) != std::string::npos)
    config.refuse("feed_forward_proj", "an activation, or \"gated-\" and an activation,");
  return true;
}

void add_attention(Table& table, const Dimensions& d, const char* module) {
  table.inside(module, [&] {
    table.linear("q", d.hidden, d.inner);
    table.linear("k", d.hidden, d.inner);
    table.linear("v", d.hidden, d.inner);
    table.linear("o", d.inner, d.hidden);
  });
}

void add_mlp(Table& table, const Dimensions& d) {
  if (d.gated) {
    table.linear("DenseReluDense.wi_0", d.hidden, d.ffn);
    table.linear("DenseReluDense.wi_1", d.hidden, d.ffn);
  } else {
    table.linear("DenseReluDense.wi", d.hidden, d.ffn);
  }
  table.linear("DenseReluDense.wo", d.ffn, d.hidden);
  table.rms_norm("layer_norm", d.hidden);
}

// Relative positions are learned in the first block and used by all.
void add_stack(Table& table, const Dimensions& d, std::int64_t layers, bool decoder) {
  table.parameter("embed_tokens.weight", {d.vocab, d.hidden}, ModuleKind::embedding).tied = true;
  table.embedding("block.0.layer.0.SelfAttention.relative_attention_bias", d.buckets, d.heads);
  table.repeat("block", layers, [&] {
    add_attention(table, d, "layer.0.SelfAttention");
    table.rms_norm("layer.0.layer_norm", d.hidden);
    if (decoder) {
      add_attention(table, d, "layer.1.EncDecAttention");
      table.rms_norm("layer.1.layer_norm", d.hidden);
    }
    table.inside(decoder ? "layer.2" : "layer.1", [&] { add_mlp(table, d); });
  });
  table.rms_norm("final_layer_norm", d.hidden);
}

void build(const Config& config, Head head, ModelSpec& model) {
  Dimensions d{};
  d.hidden = config.count({"d_model", "hidden_size"}, 512);
  d.heads = config.count({"num_heads", "num_attention_heads"}, 8);
  d.inner = checked_multiply(d.heads, config.count({"d_kv", "head_dim"}, 64));
  d.ffn = config.count("d_ff", 2048);
  d.buckets = config.count("relative_attention_num_buckets", 32);
  d.vocab = config.count("vocab_size", 32128);
  d.gated = is_gated(config);
  const std::int64_t layers = config.repeats({"num_layers", "num_hidden_layers"}, 6);
  // Absent or null: as many as the encoder.
  const std::int64_t decoder_layers =
      config.has("num_decoder_layers") ? config.repeats("num_decoder_layers", layers) : layers;
  Table table;
  table.embedding("shared", d.vocab, d.hidden);
  table.inside("encoder", [&] { add_stack(table, d, layers, false); });
  if (head != Head::encoder)
    table.inside("decoder", [&] { add_stack(table, d, decoder_layers, true); });
  if (head == Head::language_model)
    table.head("lm_head", d.hidden, d.vocab, config.flag("tie_word_embeddings", true));
  model.parameters = table.take();
}
}  // namespace

Family t5() {
  return {.model_type = "t5",
          .architectures = {{"T5ForConditionalGeneration", Head::language_model},
                            {"T5WithLMHeadModel", Head::language_model},  // its old name
                            {"T5Model", Head::base},
                            {"T5EncoderModel", Head::encoder}},
          .lora_targets = {"q", "v"},
          .build = build};
}

}  // namespace plimsoll::models::families
