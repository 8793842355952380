#include "models/table/numerics.h"

#include <cmath>

namespace plimsoll::models::families {

namespace {
double positive(const Config& config, const char* key, double fallback) {
  const double value = config.real(key, fallback);
  if (!(value > 0)) config.refuse(key, "a number above 0");
  return value;
}

double needed(const Config& config, const char* key) {
  if (!config.has(key)) config.refuse(key, "a number (rope_type llama3)");
  return positive(config, key, 1);
}

double epsilon(const Config& config, const char* key, double fallback) {
  const double value = config.real(key, fallback);
  if (!(value >= 0)) config.refuse(key, "a number of at least 0");
  return value;
}

// torch.nn.Embedding counts a negative index from the end.
std::optional<std::int64_t> padding_row(const Config& config, std::int64_t vocab) {
  if (!config.has("pad_token_id")) return std::nullopt;
  const double id = config.real("pad_token_id", 0);
  const auto rows = static_cast<double>(vocab);
  if (id != std::floor(id) || id < -rows || id >= rows)
    config.refuse("pad_token_id", "a token of the vocabulary");
  return static_cast<std::int64_t>(id < 0 ? id + rows : id);
}

Rotary read_rotary(const Config& config, const ModelSpec& model) {
  // An empty object is no object to Transformers, and rope_scaling comes first.
  std::optional<Config> rope = config.section("rope_scaling");
  if (!rope || rope->keys().empty()) rope = config.section("rope_parameters");
  Rotary rotary{.theta = positive(config, "rope_theta", 10000)};
  if (config.real("partial_rotary_factor", 1) != 1)
    config.refuse("partial_rotary_factor", "1 (rotation of the whole head)");
  if (!rope) return rotary;
  rotary.theta = positive(*rope, "rope_theta", rotary.theta);
  if (rope->real("partial_rotary_factor", 1) != 1)
    rope->refuse("partial_rotary_factor", "1 (rotation of the whole head)");
  const std::string type = rope->text({"rope_type", "type"}, "default");
  if (type == "default") return rotary;
  check(type == "llama3", ErrorKind::unsupported,
        [&] { return config.source() + ": rotary scaling of type '" + type.substr(0, 40) + "'"; });
  rotary.factor = needed(*rope, "factor");
  rotary.low_factor = needed(*rope, "low_freq_factor");
  rotary.high_factor = needed(*rope, "high_freq_factor");
  if (rotary.high_factor <= rotary.low_factor)
    rope->refuse("high_freq_factor", "more than low_freq_factor");
  rotary.original_positions =
      config.count("original_max_position_embeddings",
                   rope->count("original_max_position_embeddings", model.max_positions));
  return rotary;
}
}  // namespace

Numerics llama_numerics(const Config& config, const ModelSpec& model) {
  const Decoder& decoder = *model.decoder;
  check(decoder.head_dim % 2 == 0, ErrorKind::unsupported, [&] {
    return config.source() + ": rotation of heads of odd width " + std::to_string(decoder.head_dim);
  });
  check(model.blocks.size() == 1, ErrorKind::unsupported,
        [&] { return config.source() + ": layers with and without a sliding window"; });
  Numerics numerics{.norm_eps = epsilon(config, "rms_norm_eps", 1e-6),
                    .rotary = read_rotary(config, model),
                    .attention_scale = 1 / std::sqrt(static_cast<double>(decoder.head_dim))};
  const double deviation = config.real("initializer_range", 0.02);
  if (deviation < 0) config.refuse("initializer_range", "a number of at least 0");
  // modeling_utils.py: `config.initializer_range or 0.02`.
  numerics.initialization.deviation = deviation == 0 ? 0.02 : deviation;
  numerics.initialization.padding_row = padding_row(config, decoder.vocab);
  return numerics;
}

Numerics granite_numerics(const Config& config, const ModelSpec& model) {
  Numerics numerics = llama_numerics(config, model);
  numerics.attention_scale = positive(config, "attention_multiplier", 1);
  numerics.embedding_scale = positive(config, "embedding_multiplier", 1);
  numerics.residual_scale = positive(config, "residual_multiplier", 1);
  numerics.logits_scale = 1 / positive(config, "logits_scaling", 1);
  return numerics;
}

// configuration_olmo2.py has a padding token, and norms less fine than Llama's.
Numerics olmo2_numerics(const Config& config, const ModelSpec& model) {
  Numerics numerics = llama_numerics(config, model);
  if (!config.mentions("rms_norm_eps")) numerics.norm_eps = 1e-5;
  if (!config.mentions("pad_token_id")) numerics.initialization.padding_row = 1;
  return numerics;
}

// transformers models/gemma/modeling_gemma.py: GemmaTextScaledWordEmbedding, GemmaRMSNorm;
// configuration_gemma.py has a padding token of its own.
Numerics gemma_numerics(const Config& config, const ModelSpec& model) {
  Numerics numerics = llama_numerics(config, model);
  numerics.embedding_scale = std::sqrt(static_cast<double>(model.decoder->hidden));
  numerics.initialization.norm_weight = 0;
  if (!config.mentions("pad_token_id")) numerics.initialization.padding_row = 0;
  return numerics;
}

// scale_attn_by_inverse_layer_idx and reorder_and_upcast_attn have no step program at all
// (families/gpt2.cpp). pad_token_id is not given to GPT-2's embedding.
Numerics gpt2_numerics(const Config& config, const ModelSpec& model) {
  const Decoder& decoder = *model.decoder;
  Numerics numerics{.norm_eps = epsilon(config, "layer_norm_epsilon", 1e-5)};
  if (config.flag("scale_attn_weights", true))
    numerics.attention_scale = 1 / std::sqrt(static_cast<double>(decoder.head_dim));
  numerics.initialization.deviation = positive(config, "initializer_range", 0.02);
  numerics.initialization.residual_divisor = std::sqrt(2 * static_cast<double>(decoder.layers));
  return numerics;
}

}  // namespace plimsoll::models::families
