#include "models/table/table.h"

namespace plimsoll::models::families {

namespace {
// A side length, or height and width.
std::array<std::int64_t, 2> sides(const Config& config, const char* key, std::int64_t fallback) {
  if (!config.is_list(key)) {
    const std::int64_t side = config.count(key, fallback);
    return {side, side};
  }
  const std::vector<std::int64_t> both = config.naturals(key, 2);
  if (both.size() != 2 || both[0] == 0 || both[1] == 0) config.refuse(key, "a height and a width");
  return {both[0], both[1]};
}

void add_block(Table& table, std::int64_t hidden, std::int64_t ffn, bool qkv_bias) {
  for (const char* name : {"query", "key", "value"})
    table.linear(std::string("attention.attention.") + name, hidden, hidden, qkv_bias);
  table.linear("attention.output.dense", hidden, hidden, true);
  table.linear("intermediate.dense", hidden, ffn, true);
  table.linear("output.dense", ffn, hidden, true);
  table.layer_norm("layernorm_before", hidden);
  table.layer_norm("layernorm_after", hidden);
}

void build(const Config& config, Head head, ModelSpec& model) {
  const std::int64_t hidden = config.count("hidden_size", 768);
  const std::int64_t ffn = config.count("intermediate_size", 3072);
  const std::int64_t channels = config.count("num_channels", 3);
  const auto image = sides(config, "image_size", 224), patch = sides(config, "patch_size", 16);
  const std::int64_t patches = checked_multiply(image[0] / patch[0], image[1] / patch[1]);
  const bool qkv_bias = config.flag("qkv_bias", true);
  config.check_divides("num_attention_heads", config.count("num_attention_heads", 12),
                       "hidden_size", hidden);
  if (patches == 0) config.refuse("patch_size", "at most image_size");
  Table table;
  table.inside(head == Head::base ? "" : "vit", [&] {
    table.inside("embeddings", [&] {
      table.parameter("cls_token", {1, 1, hidden}, ModuleKind::other);
      table.parameter("position_embeddings", {1, checked_add(patches, 1), hidden},
                      ModuleKind::other);
      table.parameter("patch_embeddings.projection.weight", {hidden, channels, patch[0], patch[1]},
                      ModuleKind::conv);
      table.parameter("patch_embeddings.projection.bias", {hidden}, ModuleKind::conv);
    });
    table.repeat("encoder.layer", config.repeats("num_hidden_layers", 12),
                 [&] { add_block(table, hidden, ffn, qkv_bias); });
    table.layer_norm("layernorm", hidden);
    if (head == Head::base)
      table.linear("pooler.dense", hidden, config.optional_count("pooler_output_size", hidden),
                   true);
  });
  if (head == Head::image_classification)
    table.linear("classifier", hidden, labels(config), true, ModuleKind::head);
  model.parameters = table.take();
}
}  // namespace

Family vit() {
  return {.model_type = "vit",
          .architectures = {{"ViTForImageClassification", Head::image_classification},
                            {"ViTModel", Head::base}},
          .lora_targets = {},
          .build = build};
}

}  // namespace plimsoll::models::families
