#include "models/table/table.h"

namespace plimsoll::models::families {

namespace {
// Keys have no bias.
void add_attention(Table& table, const char* module, std::int64_t hidden) {
  table.inside(module, [&] {
    table.linear("k_proj", hidden, hidden);
    table.linear("v_proj", hidden, hidden, true);
    table.linear("q_proj", hidden, hidden, true);
    table.linear("out_proj", hidden, hidden, true);
  });
  table.layer_norm(std::string(module) + "_layer_norm", hidden);
}

void add_mlp(Table& table, std::int64_t hidden, std::int64_t ffn) {
  table.linear("fc1", hidden, ffn, true);
  table.linear("fc2", ffn, hidden, true);
  table.layer_norm("final_layer_norm", hidden);
}

void add_convolution(Table& table, const std::string& name, std::int64_t in, std::int64_t out) {
  table.parameter(name + ".weight", {out, in, 3}, ModuleKind::conv);
  table.parameter(name + ".bias", {out}, ModuleKind::conv);
}

void add_encoder(Table& table, const Config& config, std::int64_t hidden) {
  add_convolution(table, "conv1", config.count("num_mel_bins", 80), hidden);
  add_convolution(table, "conv2", hidden, hidden);
  // Sinusoids: WhisperEncoder sets requires_grad_(False).
  table
      .parameter("embed_positions.weight", {config.count("max_source_positions", 1500), hidden},
                 ModuleKind::embedding)
      .no_gradient = true;
  table.repeat("layers", config.repeats("encoder_layers", 4), [&] {
    add_attention(table, "self_attn", hidden);
    add_mlp(table, hidden, config.count("encoder_ffn_dim", 1536));
  });
  table.layer_norm("layer_norm", hidden);
}

void build(const Config& config, Head head, ModelSpec& model) {
  const std::int64_t hidden = config.count({"d_model", "hidden_size"}, 384);
  for (const char* heads : {"encoder_attention_heads", "decoder_attention_heads"})
    config.check_divides(heads, config.count(heads, 6), {"d_model", "hidden_size"}, hidden);
  const std::int64_t vocab = config.count("vocab_size", 51865);
  const std::int64_t positions = config.count("max_target_positions", 448);
  Table table;
  table.inside(head == Head::base ? "" : "model", [&] {
    table.inside("encoder", [&] { add_encoder(table, config, hidden); });
    table.inside("decoder", [&] {
      table.embedding("embed_tokens", vocab, hidden);
      table.embedding("embed_positions", positions, hidden);
      table.repeat("layers", config.repeats("decoder_layers", 4), [&] {
        add_attention(table, "self_attn", hidden);
        add_attention(table, "encoder_attn", hidden);
        add_mlp(table, hidden, config.count("decoder_ffn_dim", 1536));
      });
      table.layer_norm("layer_norm", hidden);
    });
  });
  if (head == Head::language_model)
    table.head("proj_out", hidden, vocab, config.flag("tie_word_embeddings", true));
  model.parameters = table.take();
  model.max_positions = positions;
}
}  // namespace

Family whisper() {
  return {.model_type = "whisper",
          .architectures = {{"WhisperForConditionalGeneration", Head::language_model},
                            {"WhisperModel", Head::base}},
          .lora_targets = {},
          .build = build};
}

}  // namespace plimsoll::models::families
