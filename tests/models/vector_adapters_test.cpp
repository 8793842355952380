// IA3, VeRA, and LoRA of stacked experts: which parameters PEFT adds. Every total is what
// print_trainable_parameters of peft 0.21.2 says of that model.
#include "models/vector_adapters.h"

#include <doctest/doctest.h>

#include "models/expert_adapters.h"
#include "models/model_catalog.h"

using namespace plimsoll;
using models::AdapterKind;
using models::Lora;
using models::LoraModule;
using models::ModelSpec;
using models::Shape;

namespace {

Count added(const ModelSpec& model, const Lora& lora) {
  return models::lora_parameter_count(models::lora_modules(model, lora));
}

std::string refusal(const ModelSpec& model, const Lora& lora) {
  try {
    (void)models::lora_modules(model, lora);
  } catch (const Error& error) {
    return error.message();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("IA3 adds a vector for each target: of what it makes, or of what a feed-forward reads") {
  const ModelSpec llama = models::catalog_model("llama-2-7b"), gpt2 = models::catalog_model("gpt2");
  Lora ia3{.kind = AdapterKind::ia3,
           .targets = models::default_ia3_targets(llama),
           .feedforward = models::default_ia3_feedforward(llama)};
  CHECK(added(llama, ia3) == Count(614'400));  // 32 · (4096 + 4096 + 11008)
  const std::vector<LoraModule> modules = models::lora_modules(llama, ia3);
  REQUIRE(modules.size() == 3);
  CHECK(modules[0].further[0].name == "base_model.model.model.layers.{}.self_attn.k_proj.ia3_l");
  CHECK(modules[0].further[0].shape == Shape{4096, 1});
  CHECK(modules[2].further[0].shape == Shape{1, 11008});
  CHECK(modules[2].scales_input);

  ia3.targets = {"all-linear"};
  CHECK(added(llama, ia3) == Count(1'581'056));  // 32 · (4 · 4096 + 2 · 11008 + 11008)

  ia3.targets = models::default_ia3_targets(gpt2);
  ia3.feedforward = models::default_ia3_feedforward(gpt2);
  CHECK(added(gpt2, ia3) == Count(64'512));  // 12 · (2304 + 3072)
}

TEST_CASE(
    "VeRA adds vectors of the rank and of what a module makes; its matrices are no parameters") {
  const ModelSpec llama = models::catalog_model("llama-2-7b");
  Lora vera{.kind = AdapterKind::vera, .rank = 256, .targets = {"q_proj", "v_proj"}};
  CHECK(added(llama, vera) == Count(278'528));  // 32 · 2 · (4096 + 256)
  vera.rank = 64;
  vera.targets = {"all-linear"};
  // 32 · (5 · 4096 + 2 · 11008 + 7 · 64)
  CHECK(added(llama, vera) == Count(1'374'208));
  const LoraModule module = models::lora_modules(llama, vera).front();
  CHECK(module.further[0].name.ends_with("q_proj.vera_lambda_b"));
  CHECK(module.further[1].shape == Shape{64});
}

TEST_CASE("stacked experts: A and B of all experts of a layer, the first parameter's inside") {
  Lora lora{.rank = 16, .parameters = {"experts.gate_up_proj", "experts.down_proj"}};
  // 32 · 8 · 16 · (4096 + 28672 + 14336 + 4096)
  CHECK(added(models::catalog_model("mixtral-8x7b"), lora) == Count(209'715'200));

  const ModelSpec qwen = models::catalog_model("qwen3-30b-a3b");
  lora = {.rank = 8,
          .targets = {"q_proj", "v_proj"},
          .parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}};
  CHECK(added(qwen, lora) == Count(317'915'136));
  const std::vector<LoraModule> modules = models::lora_modules(qwen, lora);
  REQUIRE(modules.size() == 4);
  const LoraModule &gate_up = modules[2], &down = modules[3];
  CHECK(gate_up.a.name == "base_model.model.model.layers.{}.mlp.experts.base_layer.lora_A.weight");
  CHECK(gate_up.a.shape == Shape{1024, 2048});
  CHECK(gate_up.b.shape == Shape{1536, 1024});
  CHECK(down.a.name == "base_model.model.model.layers.{}.mlp.experts.lora_A.weight");
  CHECK(down.b.shape == Shape{2048, 1024});
  lora.parameters = {"mlp.experts.gate_up_proj"};
  CHECK(models::lora_modules(qwen, lora)[2].a.name ==
        "base_model.model.model.layers.{}.mlp.experts.lora_A.weight");
}

TEST_CASE("what a kind of adapters has not is refused by name") {
  const ModelSpec llama = models::catalog_model("llama-2-7b");
  const Lora ia3{.kind = AdapterKind::ia3, .targets = {"k_proj"}};
  const auto says = [&](const Lora& lora, const char* text) {
    return refusal(llama, lora).find(text) != std::string::npos;
  };
  Lora other = ia3;
  other.dora = true;
  CHECK(says(other, "--adapter ia3 has neither --use-dora nor --lora-bias"));
  other = ia3;
  other.dropout = 0.1;
  CHECK(says(other, "no --lora-dropout"));
  other = ia3;
  other.targets = {"embed_tokens"};
  CHECK(says(other, "around linear modules alone"));
  other = {.targets = {"q_proj"}, .feedforward = {"down_proj"}};
  CHECK(says(other, "--feedforward-modules belongs to --adapter ia3"));
  other = {.targets = {"q_proj"}, .parameters = {"mlp.up_proj.weight"}};
  CHECK(says(other, "names no stacked experts of llama-2-7b"));
  other = {.dropout = 0.1, .parameters = {"experts.down_proj"}};
  CHECK(says(other, "--target-parameters with --lora-dropout: PEFT refuses it"));
  CHECK_THROWS_WITH_AS((void)models::default_ia3_targets(models::catalog_model("qwen3-30b-a3b")),
                       doctest::Contains("PEFT has no default targets of IA3"), Error);
}
