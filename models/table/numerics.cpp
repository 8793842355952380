#include "models/table/numerics.h"

#include <cmath>

#include "models/base/utf8.h"

namespace plimsoll::models::families {

namespace {
double positive(const Config& config, const char* key, double fallback) {
  const double value = config.real(key, fallback);
  if (!(value > 0)) config.refuse(key, "a number above 0");
  return value;
}

double needed(const Config& config, const char* key, const std::string& rope_type) {
  if (!config.has(key)) config.refuse(key, "a number (rope_type " + rope_type + ")");
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

// The family's decoder has it, or the whole head is rotated.
void check_fraction(const Config& config, const ModelSpec& model) {
  if (model.decoder->rotary_dim == 0 && config.real("partial_rotary_factor", 1) != 1)
    config.refuse("partial_rotary_factor", "1 (rotation of the whole head)");
}

// `section` is where the rotation's own fields stand, `config` where older files have some of them.
Rotary read_rotary(const Config& config, const std::optional<Config>& section,
                   const ModelSpec& model, double theta) {
  Rotary rotary{.theta = theta};
  if (!section) return rotary;
  rotary.theta = positive(*section, "rope_theta", rotary.theta);
  check_fraction(*section, model);
  const std::string type = section->text({"rope_type", "type"}, "default");
  if (type == "default") return rotary;
  check(type == "llama3" || type == "linear", ErrorKind::unsupported,
        [&] { return config.source() + ": rotary scaling of type '" + shortened(type) + "'"; });
  rotary.factor = needed(*section, "factor", type);
  if (type == "linear") {
    rotary.original_positions = 0;
    return rotary;
  }
  rotary.low_factor = needed(*section, "low_freq_factor", type);
  rotary.high_factor = needed(*section, "high_freq_factor", type);
  if (rotary.high_factor <= rotary.low_factor)
    section->refuse("high_freq_factor", "more than low_freq_factor");
  rotary.original_positions =
      config.count("original_max_position_embeddings",
                   section->count("original_max_position_embeddings", model.max_positions));
  return rotary;
}

// An empty object is no object to Transformers, and rope_scaling comes first.
std::optional<Config> rotary_section(const Config& config) {
  std::optional<Config> rope = config.section("rope_scaling");
  if (!rope || rope->keys().empty()) rope = config.section("rope_parameters");
  return rope;
}

Rotary read_rotary(const Config& config, const ModelSpec& model, const char* key = "rope_theta",
                   double theta = 10000) {
  check_fraction(config, model);
  return read_rotary(config, rotary_section(config), model, positive(config, key, theta));
}

double scale_of_scores(const ModelSpec& model) {
  return 1 / std::sqrt(static_cast<double>(model.decoder->head_dim));
}

// modeling_utils.py: `config.initializer_range or 0.02`.
double deviation_of(const Config& config) {
  const double deviation = config.real("initializer_range", 0.02);
  if (deviation < 0) config.refuse("initializer_range", "a number of at least 0");
  return deviation == 0 ? 0.02 : deviation;
}

// What Llama-like models have in common but for their rotation.
Numerics read_llama_like(const Config& config, const ModelSpec& model) {
  const Decoder& decoder = *model.decoder;
  check(decoder.rotated() % 2 == 0, ErrorKind::unsupported, [&] {
    return config.source() + ": rotation of heads of odd width " + std::to_string(decoder.head_dim);
  });
  Numerics numerics{.norm_eps = epsilon(config, "rms_norm_eps", 1e-6),
                    .attention_scale = scale_of_scores(model)};
  numerics.initialization.deviation = deviation_of(config);
  numerics.initialization.padding_row = padding_row(config, decoder.vocab);
  return numerics;
}
}  // namespace

Numerics llama_numerics(const Config& config, const ModelSpec& model) {
  Numerics numerics = read_llama_like(config, model);
  numerics.rotary = read_rotary(config, model);
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

// configuration_phi3.py has a padding token too.
Numerics phi3_numerics(const Config& config, const ModelSpec& model) {
  Numerics numerics = llama_numerics(config, model);
  if (!config.mentions("rms_norm_eps")) numerics.norm_eps = 1e-5;
  constexpr std::int64_t kPadding = 32000;
  if (!config.mentions("pad_token_id") && kPadding < model.decoder->vocab)
    numerics.initialization.padding_row = kPadding;
  return numerics;
}

// configuration_mixtral.py.
Numerics mixtral_numerics(const Config& config, const ModelSpec& model) {
  Numerics numerics = read_llama_like(config, model);
  numerics.rotary = read_rotary(config, model, "rope_theta", 1'000'000);
  if (!config.mentions("rms_norm_eps")) numerics.norm_eps = 1e-5;
  return numerics;
}

Numerics phi_numerics(const Config& config, const ModelSpec& model) {
  Numerics numerics{.norm_eps = epsilon(config, "layer_norm_eps", 1e-5),
                    .rotary = read_rotary(config, model),
                    .attention_scale = scale_of_scores(model)};
  numerics.initialization.deviation = deviation_of(config);
  numerics.initialization.padding_row = padding_row(config, model.decoder->vocab);
  return numerics;
}

// GPTNeoXModel's embedding has no padding_idx.
Numerics gpt_neox_numerics(const Config& config, const ModelSpec& model) {
  Numerics numerics{.norm_eps = epsilon(config, "layer_norm_eps", 1e-5),
                    .rotary = read_rotary(config, model, "rotary_emb_base"),
                    .attention_scale = scale_of_scores(model)};
  numerics.initialization.deviation = deviation_of(config);
  return numerics;
}

// transformers models/gemma/modeling_gemma.py: GemmaTextScaledWordEmbedding, GemmaRMSNorm;
// configuration_gemma.py has a padding token of its own.
void set_gemma_numerics(const Config& config, const ModelSpec& model, Numerics& numerics) {
  numerics.embedding_scale = std::sqrt(static_cast<double>(model.decoder->hidden));
  numerics.initialization.norm_weight = 0;
  if (!config.mentions("pad_token_id")) numerics.initialization.padding_row = 0;
}

Numerics gemma_numerics(const Config& config, const ModelSpec& model) {
  Numerics numerics = llama_numerics(config, model);
  set_gemma_numerics(config, model, numerics);
  return numerics;
}

// transformers models/gemma2/configuration_gemma2.py. "final_logit_softcapping": null caps nothing.
Numerics gemma2_numerics(const Config& config, const ModelSpec& model) {
  Numerics numerics = gemma_numerics(config, model);
  numerics.attention_scale = 1 / std::sqrt(positive(config, "query_pre_attn_scalar", 256));
  const auto cap = [&](const char* key, double fallback) {
    return config.has(key) || !config.mentions(key) ? positive(config, key, fallback) : 0;
  };
  numerics.attention_cap = cap("attn_logit_softcapping", 50);
  numerics.logits_cap = cap("final_logit_softcapping", 30);
  return numerics;
}

// transformers models/gemma3/configuration_gemma3.py, convert_rope_params_to_dict: the hub's files
// have "rope_scaling" for the layers without a window and a theta for each kind.
Numerics gemma3_numerics(const Config& config, const ModelSpec& model) {
  Numerics numerics = read_llama_like(config, model);
  set_gemma_numerics(config, model, numerics);
  numerics.attention_scale = 1 / std::sqrt(positive(config, "query_pre_attn_scalar", 256));
  const std::optional<Config> both = config.section("rope_parameters");
  const auto of = [&](const char* kind, std::optional<Config> older, const char* key,
                      double theta) {
    const std::optional<Config> section = both ? both->section(kind) : std::move(older);
    return read_rotary(config, section, model, positive(config, key, theta));
  };
  if (model.decoder->soft_capped_logits)
    numerics.logits_cap = positive(config, "final_logit_softcapping", 0);
  numerics.rotary = of("full_attention", config.section("rope_scaling"), "rope_theta", 1'000'000);
  numerics.local_rotary = of("sliding_attention", std::nullopt, "rope_local_base_freq", 10'000);
  return numerics;
}

// configuration_opt.py has a padding token.
Numerics opt_numerics(const Config& config, const ModelSpec& model) {
  check(model.decoder->embedding_width == 0, ErrorKind::unsupported, [&] {
    return config.source() + ": our own runtime has no embedding narrower than the model";
  });
  Numerics numerics{.attention_scale = 1 / std::sqrt(static_cast<double>(model.decoder->head_dim))};
  numerics.initialization.deviation = positive(config, "init_std", 0.02);
  numerics.initialization.padding_row =
      config.mentions("pad_token_id") ? padding_row(config, model.decoder->vocab) : 1;
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
