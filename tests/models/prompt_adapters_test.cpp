// Prompts that are learned: which parameters PEFT trains. Every total is what
// print_trainable_parameters of peft 0.21.2 says of that model.
#include "models/prompt_adapters.h"

#include <doctest/doctest.h>

#include "models/lora.h"
#include "models/model_catalog.h"

using namespace plimsoll;
using models::AdapterKind;
using models::Lora;
using models::ModelSpec;
using models::Shape;

namespace {

std::string refusal(const Lora& lora) {
  try {
    (void)models::prompt_parameters(models::catalog_model("gpt2"), lora);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return error.message();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("prompt tuning trains an embedding of each virtual token, and adapts no module") {
  const ModelSpec gpt2 = models::catalog_model("gpt2");
  const Lora prompt{.kind = AdapterKind::prompt_tuning, .virtual_tokens = 20};
  CHECK(models::prompt_parameter_count(gpt2, prompt) == Count(15'360));  // 20 · 768
  CHECK(models::lora_modules(gpt2, prompt).empty());
  const auto rows = models::prompt_parameters(gpt2, prompt);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].name == "prompt_encoder.default.embedding.weight");
  CHECK(rows[0].shape == Shape{20, 768});
  models::Strategy s;
  CHECK(models::virtual_tokens(s) == 0);
  s.lora = prompt;
  CHECK(models::virtual_tokens(s) == 20);
  s.lora->kind = AdapterKind::ia3;
  CHECK(models::virtual_tokens(s) == 0);
}

TEST_CASE("P-tuning trains the perceptron of three layers too") {
  const ModelSpec llama = models::catalog_model("llama-2-7b");
  Lora lora{.kind = AdapterKind::p_tuning, .virtual_tokens = 20, .encoder_hidden = 128};
  // 20 · 4096, 4096 · 128 + 128, 128 · 128 + 128, 128 · 4096 + 4096
  CHECK(models::prompt_parameter_count(llama, lora) == Count(1'151'232));
  lora.encoder_hidden = 4096;
  CHECK(models::prompt_parameter_count(llama, lora) == Count(50'425'856));
  const auto rows = models::prompt_parameters(llama, lora);
  REQUIRE(rows.size() == 7);
  CHECK(rows.back().name == "prompt_encoder.default.mlp_head.4.bias");
}

TEST_CASE("prefix tuning trains keys and values of each layer, or the perceptron that makes them") {
  const ModelSpec llama =
      models::catalog_model("llama-3.2-1b");  // 16 layers, 8 heads of keys, of 64
  Lora lora{.kind = AdapterKind::prefix_tuning, .virtual_tokens = 20};
  CHECK(models::prompt_parameter_count(llama, lora) == Count(327'680));  // 20 · 16 · 2 · 512
  const auto rows = models::prompt_parameters(llama, lora);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].shape == Shape{20, 16'384});
  CHECK(models::lora_modules(llama, lora).empty());
  lora.encoder_hidden = 64;
  // 20 · 512, 512 · 64 + 64, 64 · 16,384 + 16,384
  CHECK(models::prompt_parameter_count(llama, lora) == Count(1'108'032));
  const auto made = models::prompt_parameters(llama, lora);
  REQUIRE(made.size() == 5);
  CHECK(made[3].name == "prompt_encoder.default.transform.2.weight");
  CHECK(made[3].shape == Shape{16'384, 64});
  // A sequence is no longer for it: its keys are.
  models::Strategy s;
  s.lora = lora;
  CHECK(models::virtual_tokens(s) == 0);
  CHECK(models::prefix_tokens(s) == 20);
}

TEST_CASE("what a prompt has not is refused by its option") {
  const Lora prompt{.kind = AdapterKind::prompt_tuning, .virtual_tokens = 20};
  CHECK(refusal(prompt) == "accepted");
  const auto with = [&](auto change) {
    Lora lora = prompt;
    change(lora);
    return refusal(lora);
  };
  CHECK(with([](Lora& l) { l.virtual_tokens = 0; }).find("--virtual-tokens") != std::string::npos);
  CHECK(with([](Lora& l) { l.encoder_hidden = 8; }).find("--encoder-hidden") != std::string::npos);
  CHECK(with([](Lora& l) { l.kind = AdapterKind::p_tuning; }).find("--encoder-hidden") !=
        std::string::npos);
  CHECK(with([](Lora& l) { l.targets = {"q_proj"}; }).find("--lora-targets") != std::string::npos);
  CHECK(with([](Lora& l) { l.modules_to_save = {"lm_head"}; }).find("--modules-to-save") !=
        std::string::npos);
  CHECK(with([](Lora& l) { l.dtype = DType::bf16; }).find("fp32") != std::string::npos);
}
