// PEFT's adapter_config.json, as options.
#include <doctest/doctest.h>

#include <string>

#include "models/model_reader.h"
#include "models/peft_config_reader.h"
#include "tests/models/file_settings.h"

using namespace plimsoll;
using namespace plimsoll::tests;

namespace {

// hidden 64, 4 layers, key-value width 32, MLP 128.
const models::ModelSpec& tiny() {
  static const models::ModelSpec model = models::read_model(
      R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
          "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
          "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 64})",
      "tiny", "tiny", {});
  return model;
}
models::FileSettings peft(std::string_view text) {
  return models::read_peft_config(text, "a.json", &tiny());
}
std::string targets(std::string_view members) {
  return said(peft("{" + std::string(members) + "}")).at("lora-targets");
}
std::string no_peft(std::string_view text, ErrorKind kind = ErrorKind::bad_input) {
  return refusal(peft, std::string(text), kind);
}

}  // namespace

TEST_CASE("a LoraConfig becomes the options of adapters, with PEFT's defaults marked") {
  const auto file = peft(R"({"peft_type": "LORA", "r": 16, "lora_alpha": 32, "lora_dropout": 0.05,
      "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", "inference_mode": true})");
  CHECK(said(file) == Said{{"lora-rank", "16"},
                           {"lora-alpha", "32"},
                           {"lora-dropout", "0.05"},
                           {"lora-targets", "q_proj,v_proj"}});
  CHECK(says(notes(file), "of no bearing on memory: inference_mode"));
  // LoraConfig(): r 8, alpha 8 (not 16), no dropout, for llama q_proj and v_proj.
  CHECK(said(peft("{}")) == Said{{"lora-rank", "(8)"},
                                 {"lora-alpha", "(8)"},
                                 {"lora-dropout", "(0)"},
                                 {"lora-targets", "(q_proj,v_proj)"}});
  const auto further = peft(R"({"modules_to_save": ["embed_tokens", "lm_head"], "lora_bias": true,
      "use_dora": true, "use_rslora": true, "init_lora_weights": "pissa"})");
  CHECK(said(further).at("modules-to-save") == "embed_tokens,lm_head");
  CHECK(said(further).at("lora-bias") == "yes");
  CHECK(said(further).at("use-dora") == "yes");
  CHECK(says(notes(further), "init_lora_weights \"pissa\" is made before the first step"));
  CHECK(says(notes(further), "of no bearing on memory: use_rslora"));
  CHECK(says(no_peft(R"({"modules_to_save": ["a,b"]})"), "modules_to_save"));
}

TEST_CASE("an IA3Config and a VeraConfig become options, and so do target_parameters") {
  const auto ia3 = peft(R"({"peft_type": "IA3", "target_modules": ["k_proj", "down_proj"],
      "feedforward_modules": ["down_proj"], "init_ia3_weights": true})");
  CHECK(said(ia3) == Said{{"adapter", "ia3"},
                          {"lora-targets", "k_proj,down_proj"},
                          {"feedforward-modules", "down_proj"}});
  CHECK(says(notes(ia3), "of no bearing on memory: init_ia3_weights"));
  // Targets and feed-forward modules are PEFT's own for the model_type, as without the file.
  CHECK(said(peft(R"({"peft_type": "IA3"})")) == Said{{"adapter", "ia3"}});
  CHECK(
      said(peft(R"({"peft_type": "IA3", "feedforward_modules": []})")).at("feedforward-modules") ==
      "none");
  CHECK(says(
      no_peft(R"({"peft_type": "IA3", "feedforward_modules": ".*down"})", ErrorKind::unsupported),
      "a pattern is not modelled yet"));
  CHECK(says(no_peft(R"({"peft_type": "IA3", "feedfoward_modules": []})"),
             "did you mean 'feedforward_modules'?"));

  CHECK(said(peft(R"({"peft_type": "VERA", "target_modules": "all-linear"})")) ==
        Said{{"adapter", "vera"},
             {"lora-rank", "(256)"},
             {"lora-dropout", "(0)"},
             {"lora-targets", "all-linear"}});
  CHECK(said(peft(R"({"peft_type": "VERA", "r": 64, "vera_dropout": 0.1})")).at("lora-dropout") ==
        "0.1");

  const auto experts = peft(R"({"target_parameters": ["mlp.experts.gate_up_proj"]})");
  CHECK(said(experts).at("target-parameters") == "mlp.experts.gate_up_proj");
  CHECK_FALSE(said(experts).contains("lora-targets"));
}

TEST_CASE("a PromptTuningConfig and a PromptEncoderConfig become options") {
  const auto prompt = peft(R"({"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 20,
      "prompt_tuning_init": "TEXT", "token_dim": 64, "num_transformer_submodules": 1})");
  CHECK(said(prompt) == Said{{"adapter", "prompt-tuning"}, {"virtual-tokens", "20"}});
  CHECK(says(notes(prompt), "of no bearing on memory: prompt_tuning_init"));
  const auto perceptron = peft(R"({"peft_type": "P_TUNING", "num_virtual_tokens": 8,
      "encoder_hidden_size": 128, "encoder_num_layers": 2, "modules_to_save": null})");
  CHECK(said(perceptron) ==
        Said{{"adapter", "p-tuning"}, {"virtual-tokens", "8"}, {"encoder-hidden", "128"}});
  // PEFT's own is the model's hidden size, as without the option.
  CHECK_FALSE(said(peft(R"({"peft_type": "P_TUNING", "num_virtual_tokens": 8})"))
                  .contains("encoder-hidden"));
  CHECK(says(no_peft(R"({"peft_type": "PROMPT_TUNING"})"), "num_virtual_tokens"));
  const auto no = [](std::string_view text) { return no_peft(text, ErrorKind::unsupported); };
  CHECK(says(no(R"({"peft_type": "P_TUNING", "num_virtual_tokens": 8,
                    "encoder_reparameterization_type": "LSTM"})"),
             "LSTM is not modelled"));
  CHECK(says(no(R"({"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 8, "token_dim": 32})"),
             "tiny has a hidden size of 64"));
  CHECK(says(no(R"({"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 8,
                    "num_transformer_submodules": 2})"),
             "num_transformer_submodules"));
  CHECK(says(no(R"({"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 8,
                    "modules_to_save": ["lm_head"]})"),
             "modules_to_save"));
}

TEST_CASE("a PrefixTuningConfig has a perceptron where it projects, not where its width is said") {
  const auto plain = peft(R"({"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 20,
      "encoder_hidden_size": 64, "prefix_projection": false, "init_weights": null})");
  CHECK(said(plain) == Said{{"adapter", "prefix-tuning"}, {"virtual-tokens", "20"}});
  const auto made = peft(R"({"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 20,
      "encoder_hidden_size": 48, "prefix_projection": true})");
  CHECK(said(made) ==
        Said{{"adapter", "prefix-tuning"}, {"virtual-tokens", "20"}, {"encoder-hidden", "48"}});
  // PEFT's own is the width of a layer's keys.
  const auto own = said(peft(R"({"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 20,
                                 "prefix_projection": true})"));
  CHECK(own.at("encoder-hidden") == "(32)");
  CHECK(says(no_peft(R"({"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 8, "token_dim": 31})",
                     ErrorKind::unsupported),
             "tiny has keys of a width of 32"));
}

// Each with the number of parameters that peft 0.21.2 gives the same model at r = 4.
TEST_CASE("patterns, exclusions and chosen layers name the modules that PEFT adapts") {
  CHECK(targets(R"("target_modules": "ALL-linear")") ==
        "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj");  // 16,384
  CHECK(targets(R"("target_modules": "all-linear")") == "all-linear");
  CHECK(targets(R"("target_modules": ".*\\.(q|v)_proj")") == "q_proj,v_proj");  // 3,584
  CHECK(targets(R"("target_modules": "all-linear", "exclude_modules": ["down_proj"])") ==
        "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj");  // 13,312
  // 4 (64 + 64) + 4 (64 + 128), twice: 2,560
  CHECK(targets(R"("target_modules": ["q_proj", "up_proj"], "layers_to_transform": [0, 2])") ==
        "model.layers.0.self_attn.q_proj,model.layers.2.self_attn.q_proj,"
        "model.layers.0.mlp.up_proj,model.layers.2.mlp.up_proj");
  CHECK(targets(R"("target_modules": ["q_proj"], "layers_to_transform": 1,
                   "layers_pattern": "layers")") == "model.layers.1.self_attn.q_proj");  // 512
  CHECK(targets(R"("target_modules": "model\\.layers\\.[13]\\.mlp\\.down_proj")") ==
        "model.layers.1.mlp.down_proj,model.layers.3.mlp.down_proj");
}

TEST_CASE("what PEFT cannot adapt or find is an error, and so is a pattern without end") {
  CHECK(says(no_peft(R"({"target_modules": ".*"})"), "fits model too, which PEFT adapts not"));
  CHECK(says(no_peft(R"({"target_modules": ".*mlp.*"})"), "fits model.layers.0.mlp too"));
  CHECK(says(no_peft(R"({"target_modules": "q_proj"})"), "fits no module of tiny"));
  CHECK(says(no_peft(R"({"target_modules": ["attention"]})"), "fits no module"));
  CHECK(says(no_peft(R"({"target_modules": ["q_proj"], "layers_to_transform": [1],
                         "layers_pattern": "blocks"})"),
             "fits no module"));
  CHECK(says(no_peft(R"({"target_modules": "(.*)*(.*)*(.*)*(.*)*x"})"), "fits no module"));
  CHECK(says(no_peft(R"({"target_modules": "(a|b"})"), "a regular expression"));
  CHECK(says(no_peft("{\"target_modules\": \"" + std::string(2000, 'a') + "\"}"), "at most 1000"));
  CHECK(says(no_peft(R"({"target_modules": 3})"), "target_modules is 3"));
  CHECK(says(no_peft(R"({"target_modules": ["a,b"]})"), "with a comma"));
  CHECK(says(no_peft(R"({"r": "8"})"), "a.json: r is \"8\", but a positive whole number"));
  CHECK(says(no_peft(R"({"lora_dropuot": 0.1})"), "did you mean 'lora_dropout'?"));
  CHECK(says(no_peft("[]"), "a.json: a list of 0 where a JSON object"));
  CHECK(says(notes(peft(R"({"a_later_release": 1})")), "PEFT knows no a_later_release"));
}

TEST_CASE("adapters whose memory is not planned are refused by their key") {
  const auto no = [](std::string_view text) { return no_peft(text, ErrorKind::unsupported); };
  CHECK(says(no(R"({"rank_pattern": {"q_proj": 4}})"), "rank_pattern"));
  CHECK(says(no(R"({"bias": "all"})"), "bias"));
  for (const char* type : {"CARTRIDGE", "LOHA"})
    CHECK(says(no(R"({"peft_type": ")" + std::string(type) + R"(", "num_virtual_tokens": 20})"),
               "only LORA, IA3, VERA, PROMPT_TUNING, P_TUNING and PREFIX_TUNING are modelled"));
  CHECK(says(no(R"({"trainable_token_indices": [1, 2]})"), "trainable_token_indices"));
  CHECK(says(no(R"({"task_type": "SEQ_CLS"})"), "task_type"));
  CHECK(no_peft(R"({"use_dora": false, "modules_to_save": null, "rank_pattern": {}})") ==
        "accepted");
}
