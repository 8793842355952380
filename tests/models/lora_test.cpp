#include "models/lora.h"

#include <doctest/doctest.h>

#include "models/model_catalog.h"
#include "models/model_reader.h"

using namespace plimsoll;
using models::Lora;
using models::LoraModule;
using models::ModelSpec;
using models::Shape;

namespace {
Count count(const ModelSpec& model, std::int64_t rank, std::vector<std::string> targets) {
  Lora lora;
  lora.rank = rank;
  lora.targets = std::move(targets);
  return models::lora_parameter_count(models::lora_modules(model, lora));
}

template <class Ask>
std::string refusal_of(Ask ask) {
  try {
    ask();
  } catch (const Error& error) {
    return error.message();
  }
  return "accepted";
}

std::string refusal(const ModelSpec& model, std::int64_t rank, std::vector<std::string> targets) {
  try {
    (void)count(model, rank, std::move(targets));
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return error.message();
  }
  return "accepted";
}
}  // namespace

TEST_CASE("Llama 2 7B: r=8 on q and v adds 4 194 304, r=16 on all seven 39 976 960") {
  const ModelSpec llama = models::catalog_model("llama-2-7b");
  // 32 layers * 2 modules * 8 * (4096 + 4096).
  CHECK(count(llama, 8, {"q_proj", "v_proj"}) == Count(4'194'304));
  CHECK(count(llama, 8, {}) == Count(4'194'304));  // PEFT's default for llama
  // 32 * 16 * (4 * (4096 + 4096) + 3 * (4096 + 11008)).
  CHECK(count(llama, 16, {"all-linear"}) == Count(39'976'960));
  CHECK(count(llama, 16,
              {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}) ==
        Count(39'976'960));
  // 32 * 16 * 4 * 8192.
  CHECK(count(llama, 16, {"attention"}) == Count(16'777'216));
}

TEST_CASE("GPT-2's Conv1D: A takes what goes in, and all-linear leaves the head out") {
  const ModelSpec gpt2 = models::catalog_model("gpt2");
  const auto modules = models::lora_modules(gpt2, {.rank = 8, .targets = {"c_attn"}});
  REQUIRE(modules.size() == 1);
  CHECK(modules[0].name == "transformer.h.{}.attn.c_attn");
  CHECK(modules[0].a.name == "base_model.model.transformer.h.{}.attn.c_attn.lora_A.weight");
  CHECK(modules[0].a.shape == Shape{8, 768});
  CHECK(modules[0].b.shape == Shape{2304, 8});
  CHECK(modules[0].a.instances() == 12);
  // 12 * 8 * (768 + 2304), the figure that PEFT's examples print.
  CHECK(models::lora_parameter_count(modules) == Count(294'912));
  // c_attn 768 + 2304, c_proj 768 + 768, c_fc 768 + 3072, c_proj 3072 + 768; * 8 * 12.
  CHECK(count(gpt2, 8, {"all-linear"}) == Count(1'179'648));
  // "c_proj" names both projections, "mlp.c_proj" one: 12 * 8 * 3840.
  CHECK(count(gpt2, 8, {"mlp.c_proj"}) == Count(368'640));
  CHECK(count(gpt2, 8, {"c_proj"}) == Count(368'640 + 12 * 8 * 1536));
}

// PEFT 0.21.2 (tuners/lora/layer.py, Conv1d): A has the kernel's width, B is of one position.
// whisper-base is 512 wide: 8 * (80 * 3 + 512) and 8 * (512 * 3 + 512).
TEST_CASE("Whisper's convolutions are adapted with their kernel's width") {
  const ModelSpec whisper = models::catalog_model("whisper-base");
  CHECK(count(whisper, 8, {"conv1"}) == Count(6'016));
  CHECK(count(whisper, 8, {"conv2"}) == Count(16'384));
}

TEST_CASE("a number in a target picks one layer, and no module is adapted twice") {
  const ModelSpec llama = models::catalog_model("llama-2-7b");
  CHECK(count(llama, 1, {"layers.3.self_attn.q_proj"}) == Count(8192));
  CHECK(count(llama, 1, {"layers.3.self_attn.q_proj", "3.self_attn.q_proj"}) == Count(8192));
  CHECK(count(llama, 1, {"layers.3.self_attn.q_proj", "q_proj"}) == Count(32 * 8192));
  CHECK(count(llama, 1, {"q_proj", "layers.3.self_attn.q_proj"}) == Count(32 * 8192));
  CHECK(refusal(llama, 1, {"layers.32.self_attn.q_proj"}) != "accepted");
}

TEST_CASE("embeddings and heads can be named: r * (V + h)") {
  const ModelSpec llama = models::catalog_model("llama-2-7b");
  const auto modules = models::lora_modules(llama, {.rank = 4, .targets = {"embed_tokens"}});
  REQUIRE(modules.size() == 1);
  CHECK(modules[0].a.shape == Shape{4, 32000});
  CHECK(modules[0].b.shape == Shape{4096, 4});
  CHECK(count(llama, 4, {"lm_head"}) == Count(4 * (32000 + 4096)));
}

TEST_CASE("a target that names nothing is refused with the nearest module") {
  const ModelSpec llama = models::catalog_model("llama-2-7b");
  CHECK(refusal(llama, 8, {"q_porj"}).find("did you mean 'q_proj'?") != std::string::npos);
  CHECK(refusal(llama, 8, {"q_proj", "c_attn"}).find("'c_attn'") != std::string::npos);
  CHECK(refusal(llama, 8, {"proj"}).find("'proj'") != std::string::npos);  // not a whole part
  CHECK(refusal(llama, 8, {""}) != "accepted");
  CHECK(refusal(llama, 0, {}).find("rank 0") != std::string::npos);
}

TEST_CASE("DoRA adds a magnitude for each row of the weight, and has no biases") {
  const ModelSpec llama = models::catalog_model("llama-2-7b");
  // 32 layers: r * (4096 + 4096) and 4096 magnitudes
  Lora lora{.rank = 8, .targets = {"q_proj"}, .dora = true};
  CHECK(models::lora_parameter_count(models::lora_modules(llama, lora)) ==
        Count(32 * (8 * 8192 + 4096)));
  lora.bias = true;
  CHECK_THROWS_WITH_AS((void)models::lora_modules(llama, lora),
                       doctest::Contains("--use-dora yes with --lora-bias yes"), Error);
}

TEST_CASE("modules to save are those whose names end so; what cannot be copied is refused") {
  const ModelSpec llama = models::catalog_model("llama-2-7b");
  const ModelSpec gpt2 = models::catalog_model("gpt2");
  const auto saved = [](const ModelSpec& model, const char* name, const char* target) {
    return refusal_of([&] {
      (void)models::lora_modules(model,
                                 {.rank = 8, .targets = {target}, .modules_to_save = {name}});
    });
  };
  for (const char* name : {"lm_head", "embed_tokens", "norm", "input_layernorm"})
    CHECK(saved(llama, name, "q_proj") == "accepted");
  CHECK(saved(llama, "head", "q_proj") == "accepted");  // PEFT: key.endswith(name)
  CHECK(saved(llama, "lm_hea", "q_proj") ==
        "--modules-to-save lm_hea: names no module of llama-2-7b (embed_tokens, lm_head, norm, "
        "...)");
  CHECK(
      saved(llama, "up_proj", "q_proj") ==
      "--modules-to-save up_proj: model.layers.{}.mlp.up_proj.weight: copies of embeddings, norms "
      "and the head are modelled");
  CHECK(saved(llama, "lm_head", "lm_head") ==
        "--modules-to-save lm_head: lm_head.weight is one of --lora-targets too");
  const std::string shares =
      ": head and embedding share one table; which of both a copy is torn from is not modelled yet";
  CHECK(saved(gpt2, "lm_head", "c_attn") == "--modules-to-save lm_head" + shares);
  CHECK(saved(gpt2, "wte", "c_attn") == "--modules-to-save wte" + shares);
  CHECK(saved(gpt2, "wpe", "c_attn") == "accepted");
}

TEST_CASE(
    "what of adapters another stack may lack is named by its option, the first that is there") {
  CHECK(models::further_option({.kind = models::AdapterKind::ia3}) == std::string("--adapter ia3"));
  CHECK(models::further_option({.kind = models::AdapterKind::vera, .dora = true}) ==
        std::string("--adapter vera"));
  CHECK(models::further_option({.modules_to_save = {"x"}, .bias = true}) ==
        std::string("--modules-to-save"));
  CHECK(models::further_option({.parameters = {"x"}}) == std::string("--target-parameters"));
  CHECK(models::further_option({.dora = true}) == std::string("--use-dora"));
  CHECK(models::further_option({.bias = true}) == std::string("--lora-bias"));
  CHECK(models::further_option({}) == nullptr);
}

TEST_CASE("a refused target is shown with all that there are, an instance by its number") {
  const ModelSpec gpt2 = models::catalog_model("gpt2");
  CHECK(refusal(gpt2, 8, {"c_atn"}) ==
        "LoRA target 'c_atn' names no module of gpt2; did you mean 'c_attn'? (all-linear, "
        "attention, or of: c_attn, c_fc, c_proj, lm_head, wpe, wte)");
  for (const char* none :
       {"h.12.attn.c_attn", "h.-1.attn.c_attn", "h.x.attn.c_attn", "h.1x.attn.c_attn",
        "transformer.h.0.attn.c_attn.c_attn", "x.transformer.h.0.attn.c_attn", "ln_f"})
    CHECK(refusal(gpt2, 8, {none}).starts_with("LoRA target '" + std::string(none) + "'"));
  CHECK(count(gpt2, 8, {"transformer.h.11.attn.c_attn"}) == Count(8 * (768 + 2304)));
  CHECK(count(gpt2, 8, {"h.0.attn.c_attn"}) == Count(8 * (768 + 2304)));
}

TEST_CASE("adapters of a bias and of magnitudes have a row of the outputs for each") {
  const ModelSpec llama = models::catalog_model("llama-2-7b");
  const auto biased =
      models::lora_modules(llama, {.rank = 8, .targets = {"up_proj"}, .bias = true});
  REQUIRE(biased.size() == 1);
  REQUIRE(biased[0].further.size() == 1);
  CHECK(biased[0].further[0].name == "base_model.model.model.layers.{}.mlp.up_proj.lora_B.bias");
  CHECK(biased[0].further[0].shape == Shape{11008});
  // 32 layers: r * (4096 + 11008) and 11008 biases
  CHECK(models::lora_parameter_count(biased) == Count(32 * (8 * 15104 + 11008)));
  const auto dora = models::lora_modules(llama, {.rank = 8, .targets = {"up_proj"}, .dora = true});
  CHECK(dora[0].further[0].name ==
        "base_model.model.model.layers.{}.mlp.up_proj.lora_magnitude_vector");
  CHECK(dora[0].further[0].shape == Shape{11008});
}

TEST_CASE("a row's tensors are named with every index of its ranges, the last one fastest") {
  models::ParameterRow row;
  row.name = "l.{}.e.{}.w";
  row.ranges = {{.first = 1, .count = 2, .step = 3}, {.first = 0, .count = 3, .step = 2}};
  CHECK(models::tensor_names(row) == std::vector<std::string>{"l.1.e.0.w", "l.1.e.2.w", "l.1.e.4.w",
                                                              "l.4.e.0.w", "l.4.e.2.w",
                                                              "l.4.e.4.w"});
  CHECK(models::expand("a.{}.b", {7}) == "a.7.b");
  CHECK(models::expand("a.{}.{}", {7, 8}) == "a.7.8");
  CHECK(models::expand("a", {7}) == "a");
  row.name = "w";
  row.ranges.clear();
  CHECK(models::tensor_names(row) == std::vector<std::string>{"w"});
}

TEST_CASE("a tied row's table is the embedding of its shape that is no tied row itself") {
  const ModelSpec gpt2 = models::catalog_model("gpt2");
  for (const models::ParameterRow& row : gpt2.parameters)
    if (row.tied) CHECK(models::tied_table(gpt2, row).name == "transformer.wte.weight");
  models::ParameterRow other = gpt2.parameters.back();
  other.shape = {3, 5};
  CHECK_THROWS_WITH_AS((void)models::tied_table(gpt2, other),
                       "gpt2: no table that lm_head.weight is tied to", Error);
}
