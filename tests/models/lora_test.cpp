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
