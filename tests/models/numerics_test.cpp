// Expected values are those of transformers 5.17: its configs' defaults, modeling_rope_utils.py and
// _init_weights.
#include "models/numerics.h"

#include <doctest/doctest.h>

#include <cmath>

#include "models/initial_values.h"
#include "models/model_catalog.h"
#include "models/model_reader.h"
#include "tests/near.h"

using namespace plimsoll;
using models::InitialKind;
using models::InitialValues;
using models::ModelSpec;

namespace {
ModelSpec small(const std::string& type, const std::string& more) {
  const bool gpt2 = type == "gpt2";
  const std::string sizes =
      gpt2 ? R"("n_embd": 32, "n_layer": 8, "n_head": 2, "vocab_size": 50)"
           : R"("hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16,
                "num_key_value_heads": 1, "intermediate_size": 40, "vocab_size": 50,
                "max_position_embeddings": 77)";
  return models::read_model("{\"model_type\": \"" + type + "\", " + sizes + more + "}", "small",
                            "config.json");
}

void check_absent(const ModelSpec& model, const std::string& why) {
  CHECK(!model.numerics.has_value());
  CHECK_MESSAGE(model.no_numerics.find(why) != std::string::npos, model.no_numerics);
}

const models::ParameterRow& row(const ModelSpec& model, std::string_view suffix) {
  for (const models::ParameterRow& r : model.parameters)
    if (r.name.ends_with(suffix)) return r;
  FAIL(suffix);
  return model.parameters[0];
}
}  // namespace

TEST_CASE("absent fields take the defaults of Transformers") {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3"}) {
    CAPTURE(type);
    const auto numerics = small(type, "").numerics;
    REQUIRE(numerics.has_value());
    CHECK(numerics->norm_eps == 1e-6);
    CHECK(numerics->rotary == models::Rotary{});
    CHECK(numerics->rotary->theta == 10000);
    CHECK(numerics->attention_scale == 0.25);  // 16^-1/2
    CHECK(numerics->initialization == models::Initialization{.deviation = 0.02});
  }
  const auto gpt2 = small("gpt2", "").numerics;
  REQUIRE(gpt2.has_value());
  CHECK(gpt2->norm_eps == 1e-5);
  CHECK(!gpt2->rotary.has_value());
  CHECK(gpt2->attention_scale == 0.25);
  CHECK(gpt2->initialization.residual_divisor == 4);  // sqrt(2 · 8)
}

TEST_CASE("Llama 3's scaling is read from the hub's form and from Transformers 5's") {
  const std::string values =
      R"("factor": 8.0, "low_freq_factor": 2.0, "high_freq_factor": 5.0,
         "original_max_position_embeddings": 8191)";
  const models::Rotary expected{
      .theta = 500000, .factor = 8, .low_factor = 2, .high_factor = 5, .original_positions = 8191};
  const std::string forms[] = {
      R"(, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", )" + values + "}",
      R"(, "rope_theta": 500000.0, "rope_scaling": {"type": "llama3", )" + values + "}",
      R"(, "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, )" + values + "}",
      R"(, "rope_theta": 1.0, "rope_scaling": {},
           "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, )" +
          values + "}"};
  for (const std::string& form : forms) {
    CAPTURE(form);
    CHECK(small("llama", form).numerics->rotary == expected);
  }
  // Without it, the positions of the config.
  const ModelSpec model = small("llama", R"(, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
                          "low_freq_factor": 1.0, "high_freq_factor": 4.0})");
  CHECK(model.numerics->rotary->original_positions == 77);
  CHECK(small("llama", R"(, "rope_scaling": {"rope_type": "default"})").numerics->rotary ==
        models::Rotary{});
  CHECK(small("llama", R"(, "rope_scaling": null)").numerics->rotary == models::Rotary{});
}

TEST_CASE("linear scaling stretches every wave") {
  const models::Rotary rotary =
      *small("llama", R"(, "rope_scaling": {"factor": 8.0, "type": "linear"})").numerics->rotary;
  CHECK(rotary == models::Rotary{.factor = 8, .original_positions = 0});
}

TEST_CASE("Gemma 3 rotates layers with and without a window by other tables") {
  const models::Rotary stretched{.theta = 1'000'000, .factor = 8, .original_positions = 0};
  const auto hub = small("gemma3_text", R"(, "rope_theta": 1000000, "rope_local_base_freq": 5000,
      "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "query_pre_attn_scalar": 64)");
  REQUIRE(hub.numerics.has_value());
  CHECK(hub.numerics->rotary == stretched);
  CHECK(hub.numerics->local_rotary == models::Rotary{.theta = 5000});
  CHECK(hub.numerics->attention_scale == 0.125);  // 64^-1/2
  const auto of_5 = small("gemma3_text", R"(, "rope_parameters": {
      "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000},
      "sliding_attention": {"rope_type": "default", "rope_theta": 5000}})");
  CHECK(of_5.numerics->rotary == stretched);
  CHECK(of_5.numerics->local_rotary == models::Rotary{.theta = 5000});
  const auto silent = small("gemma3_text", "");
  CHECK(silent.numerics->rotary == models::Rotary{.theta = 1'000'000});
  CHECK(silent.numerics->local_rotary == models::Rotary{.theta = 10'000});
  CHECK(silent.numerics->attention_scale == 0.0625);  // 256^-1/2
  CHECK(silent.numerics->initialization.norm_weight == 0);
}

TEST_CASE("Gemma 2 caps scores and logits, unless its config says null") {
  const auto silent = *small("gemma2", "").numerics;
  CHECK(silent.attention_cap == 50);
  CHECK(silent.logits_cap == 30);
  CHECK(silent.attention_scale == 0.0625);  // 256^-1/2
  const auto other = *small("gemma2", R"(, "attn_logit_softcapping": 1.5,
      "final_logit_softcapping": null, "query_pre_attn_scalar": 144)")
                          .numerics;
  CHECK(other.attention_cap == 1.5);
  CHECK(other.logits_cap == 0);
  CHECK(other.attention_scale == 1 / 12.0);
  check_absent(small("gemma2", R"(, "final_logit_softcapping": -1)"), "final_logit_softcapping");
  CHECK(small("gemma3_text", R"(, "final_logit_softcapping": 20)").numerics->logits_cap == 20);
  CHECK(small("gemma3_text", "").numerics->logits_cap == 0);
}

TEST_CASE("what cannot be run can be planned, and says why not") {
  for (const char* type : {"yarn", "dynamic", "longrope", "mrope"})
    check_absent(small("llama", R"(, "rope_scaling": {"factor": 2.0, "type": ")" +
                                    std::string(type) + "\"}"),
                 "rotary scaling of type '" + std::string(type) + "'");
  check_absent(small("llama", R"(, "rope_scaling": {"rope_type": "llama3", "factor": 8.0})"),
               "low_freq_factor");
  check_absent(small("llama", R"(, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
                              "low_freq_factor": 4.0, "high_freq_factor": 4.0})"),
               "high_freq_factor is 4.0");
  check_absent(small("llama", R"(, "rope_theta": 0)"), "rope_theta is 0");
  check_absent(small("llama", R"(, "rope_theta": "x")"), "rope_theta");
  check_absent(small("llama", R"(, "rms_norm_eps": -1e-5)"), "rms_norm_eps");
  check_absent(small("llama", R"(, "rms_norm_eps": null)"), "rms_norm_eps");
  check_absent(small("llama", R"(, "partial_rotary_factor": 0.5)"), "partial_rotary_factor");
  check_absent(small("llama", R"(, "pad_token_id": 1.5)"), "pad_token_id");
  check_absent(small("llama", R"(, "initializer_range": -1)"), "initializer_range");
  check_absent(small("gpt2", R"(, "reorder_and_upcast_attn": true)"), "reorder_and_upcast_attn");
  check_absent(small("gpt2", R"(, "scale_attn_by_inverse_layer_idx": true)"),
               "scale_attn_by_inverse_layer_idx");
  check_absent(small("gpt2", R"(, "layer_norm_epsilon": "no")"), "layer_norm_epsilon");
  check_absent(small("llama", R"(, "architectures": ["LlamaModel"])"), "LlamaModel");
  check_absent(models::catalog_model("roberta-base"), "roberta");
  check_absent(models::catalog_model("deepseek-v3"), "deepseek_v3");
}

TEST_CASE("GPT-2 may leave its scores unscaled") {
  CHECK(small("gpt2", R"(, "scale_attn_weights": false)").numerics->attention_scale == 1);
}

TEST_CASE("each kind of parameter begins by Transformers' rule") {
  // The norms that torch.nn.Embedding(50, 32, padding_idx = -1) keeps at 0 are of row 49.
  const ModelSpec llama =
      small("llama", R"(, "initializer_range": 0.5, "pad_token_id": -1, "attention_bias": true)");
  const auto of = [](const ModelSpec& model, std::string_view suffix) {
    return models::initial_values(model, row(model, suffix));
  };
  const InitialValues half{.kind = InitialKind::normal, .spread = 0.5};
  CHECK(of(llama, "embed_tokens.weight") ==
        InitialValues{.kind = InitialKind::normal, .spread = 0.5, .zero_row = 49});
  CHECK(of(llama, "q_proj.weight") == half);
  CHECK(of(llama, "lm_head.weight") == half);
  CHECK(of(llama, "q_proj.bias") == InitialValues{.kind = InitialKind::zeros});
  CHECK(of(llama, "input_layernorm.weight") == InitialValues{.kind = InitialKind::ones});
  CHECK(of(small("llama", R"(, "initializer_range": 0)"), "q_proj.weight").spread == 0.02);

  // Measured with transformers 5.17, initializer_range 0.3, 3 layers: c_proj 0.1225 = 0.3 /
  // sqrt(6).
  const ModelSpec gpt2 = small("gpt2", R"(, "initializer_range": 0.3, "pad_token_id": 3)");
  CHECK(of(gpt2, "wte.weight") == InitialValues{.kind = InitialKind::normal, .spread = 0.3});
  CHECK(of(gpt2, "c_attn.weight").spread == 0.3);
  CHECK(of(gpt2, "attn.c_proj.weight").spread == 0.3 / 4);
  CHECK(of(gpt2, "mlp.c_proj.weight").spread == 0.3 / 4);
  CHECK(of(gpt2, "c_proj.bias") == InitialValues{.kind = InitialKind::zeros});
  CHECK(of(gpt2, "ln_f.weight") == InitialValues{.kind = InitialKind::ones});
  CHECK(of(gpt2, "ln_f.bias") == InitialValues{.kind = InitialKind::zeros});

  CHECK_THROWS_AS(of(models::catalog_model("bert-base-uncased"), "weight"), Error);
}

TEST_CASE("adapters begin as PEFT's: A uniform within 1 / sqrt(in), B 0") {
  const ModelSpec llama = small("llama", "");
  models::Lora lora;
  lora.rank = 4;
  lora.targets = {"down_proj", "embed_tokens"};
  const auto modules = models::lora_modules(llama, lora);
  REQUIRE(modules.size() == 2);
  // embed_tokens: A 0, B normal.
  CHECK(models::initial_lora_a(modules[0]) == InitialValues{});
  CHECK(models::initial_lora_b(modules[0]) ==
        InitialValues{.kind = InitialKind::normal, .spread = 1});
  // in = 40
  CHECK(models::initial_lora_a(modules[1]).kind == InitialKind::uniform);
  CHECK(tests::near(models::initial_lora_a(modules[1]).spread, 0.15811388, 1e-5));
  CHECK(models::initial_lora_b(modules[1]) == InitialValues{});
}

TEST_CASE("every model of the catalog that has a step program of ours says how it is run") {
  for (const char* name : {"gpt2", "gpt2-xl", "llama-2-7b", "llama-3.1-8b", "llama-3.2-3b",
                           "mistral-7b-v0.1", "qwen2.5-7b", "qwen3-8b"}) {
    CAPTURE(name);
    const ModelSpec model = models::catalog_model(name);
    CHECK(model.numerics.has_value());
  }
  CHECK(models::catalog_model("llama-3.1-8b").numerics->rotary->factor == 8);
  CHECK(models::catalog_model("llama-3.2-3b").numerics->rotary->factor == 32);
  CHECK(models::catalog_model("llama-2-7b").numerics->norm_eps == 1e-5);
}

TEST_CASE("near is relative whatever the size, and NaN is near nothing") {
  using tests::near;
  CHECK(near(1.01e-9, 1e-9, 0.0101));
  CHECK_FALSE(near(1.02e-9, 1e-9, 0.0101));
  CHECK_FALSE(near(-1e12, 1e12, 0.5));
  CHECK(near(0, 0, 0));
  CHECK_FALSE(near(1e-300, 0, 0.5));
  CHECK_FALSE(near(std::nan(""), 1, 1e9));
}
