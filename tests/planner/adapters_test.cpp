// IA3, VeRA and adapters of a mixture's experts: what is refused, by the option that asks for it,
// and what their steps keep. That the steps are PyTorch's own is pytorch_traces_test.cpp's matter.
#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "models/model_catalog.h"
#include "models/storages.h"
#include "planner/model_parts.h"
#include "planner/plan.h"
#include "planner/stacks/pytorch/stack.h"

using namespace plimsoll;
using models::AdapterKind;
using models::Lora;
using models::Strategy;

namespace {

const Lora kIa3{.kind = AdapterKind::ia3,
                .targets = {"k_proj", "v_proj", "down_proj"},
                .feedforward = {"down_proj"}};
const Lora kPrompt{.kind = AdapterKind::prompt_tuning, .virtual_tokens = 20};
const Lora kPrefix{.kind = AdapterKind::prefix_tuning, .virtual_tokens = 20};
const Lora kVera{.kind = AdapterKind::vera, .rank = 256, .targets = {"q_proj", "v_proj"}};

std::string refusal(const Lora& lora, const std::function<void(Strategy&)>& change,
                    const char* model = "llama-2-7b") {
  Strategy s;
  s.lora = lora;
  change(s);
  try {
    planner::pytorch::refuse(models::catalog_model(model), s, {});
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::unsupported);
    return error.message();
  }
  return "accepted";
}

planner::ModelParts parts_of(const char* model, const Lora& lora, const char* release) {
  Strategy s;
  s.lora = lora;
  s.transformers = *models::release_from(release);
  return planner::model_parts(models::catalog_model(model), s);
}

std::string no_parts(const char* model, const Lora& lora, const char* release) {
  try {
    parts_of(model, lora, release);
  } catch (const Error& error) {
    return error.message();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("vectors and prompts are planned on one GPU and under DDP; the rest is refused by name") {
  for (const auto& [lora, asked] :
       {std::pair(kIa3, "--adapter ia3 with "), std::pair(kVera, "--adapter vera with "),
        std::pair(kPrompt, "--adapter prompt-tuning with "),
        std::pair(kPrefix, "--adapter prefix-tuning with ")}) {
    CAPTURE(asked);
    CHECK(refusal(lora, [](Strategy&) {}) == "accepted");
    CHECK(refusal(lora, [](Strategy& s) { s.gpus = 8; }) == "accepted");
    const auto refused = [&, of = lora, with = std::string(asked)](
                             const std::string& what,
                             const std::function<void(Strategy&)>& change) {
      return refusal(of, change).starts_with(with + what);
    };
    CHECK(refused("FSDP", [](Strategy& s) {
      s.gpus = 8;
      s.data.zero = 3;
    }));
    CHECK(refused("--recompute ops:", [](Strategy& s) {
      s.recompute = {.kind = models::RecomputeKind::ops, .kept = {"attention"}};
    }));
    CHECK(refused("--optimizer-in-backward", [](Strategy& s) { s.optimizer_in_backward = true; }));
    CHECK(refused("Transformers before 5.0", [](Strategy& s) {
      s.transformers = models::Release{4, 57, 0};
    }));
  }
}

TEST_CASE("a prefix goes with SDPA and eager attention, and without checkpoints, as PEFT has it") {
  const std::string asked = "--adapter prefix-tuning ";
  const auto refused = [&](const std::string& why, const std::function<void(Strategy&)>& change,
                           const char* model = "llama-2-7b") {
    return refusal(kPrefix, change, model).starts_with(asked + why);
  };
  CHECK(refusal(kPrefix, [](Strategy& s) { s.attention = models::Attention::eager; }) ==
        "accepted");
  CHECK(refusal(kPrefix, [](Strategy& s) { s.rows = models::Rows::padded; }) == "accepted");
  CHECK(refused("with --recompute: PEFT refuses it",
                [](Strategy& s) { s.recompute = {.kind = models::RecomputeKind::full}; }));
  CHECK(refused("with --recompute selective",
                [](Strategy& s) { s.recompute = {.kind = models::RecomputeKind::selective}; }));
  CHECK(refused("is modelled with --attention flash",
                [](Strategy& s) { s.attention = models::Attention::math; }));
  const auto flash_2 = [](models::Rows rows) {
    return [rows](Strategy& s) {
      s.attention = models::Attention::flash_2;
      s.rows = rows;
    };
  };
  CHECK(refusal(kPrefix, flash_2(models::Rows::full)) == "accepted");
  CHECK(refused("with --attention flash-2 is modelled with rows that are full",
                flash_2(models::Rows::padded)));
  CHECK(refused("with --attention flash-2 of OPT", flash_2(models::Rows::full), "opt-1.3b"));
  CHECK(refused("is modelled with rows that are full or padded",
                [](Strategy& s) { s.rows = models::Rows::flattened; }));
  const auto eager = [](Strategy& s) { s.attention = models::Attention::eager; };
  CHECK(refused("of BLOOM is not modelled yet", eager, "bloom-560m"));
  const auto tokens = [](std::int64_t n) {
    return [n](Strategy& s) { s.lora->virtual_tokens = n; };
  };
  // Gemma 2's window has 4096 keys; Mistral's layers get a cache that knows none.
  CHECK(refused("with --virtual-tokens that fill", tokens(4096), "gemma-2-2b"));
  CHECK(refusal(kPrefix, tokens(4095), "gemma-2-2b") == "accepted");
  CHECK(refusal(kPrefix, tokens(4096), "mistral-7b-v0.1") == "accepted");
}

// llama-3.2-1b: 16 layers, 8 heads of keys, of 64.
TEST_CASE("a prefix's gradients keep whole keys and values until all layers are done") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  Strategy s;
  s.precision = models::Precision::bf16;
  s.lora = kPrefix;
  planner::Question question{.model = &model, .strategy = s, .batch = {.seq_len = 492}};
  const auto plan = planner::plan(question);
  CHECK(plan.trainable_parameters == Count(20 * 16 * 2 * 512));
  const auto line_of = [&](const char* name) {
    for (const reports::TensorLine& line : plan.tensors)
      if (line.name == std::string("layers.*.") + name) return line;
    return reports::TensorLine{};
  };
  CHECK(line_of("self_attn.k.prefix").bytes == Bytes(20 * 512 * 2));
  CHECK(line_of("self_attn.k.cached").bytes == Bytes(512 * 512 * 2));  // 20 + 492 keys
  const reports::TensorLine gradient = line_of("self_attn.v.grad");
  CHECK(gradient.bytes == Bytes(512 * 512 * 2));
  CHECK(gradient.repeat == 15);  // the first layer's stands by itself
  CHECK(gradient.dies.ends_with("past_key_values.stacked.grad"));
  question.batch.seq_len = 131'072 - 19;
  CHECK_THROWS_AS(planner::plan(question), Error);  // positions
}

TEST_CASE("a prompt goes with full rows, a full loss and Transformers' own code") {
  const std::string asked = "--adapter prompt-tuning ";
  CHECK(refusal(kPrompt, [](Strategy& s) { s.loss = models::Loss::fused; }) ==
        asked + "is modelled with --loss full");
  CHECK(refusal(kPrompt, [](Strategy& s) { s.rows = models::Rows::padded; }) ==
        asked + "is modelled with rows that are full");
  CHECK(refusal(kPrompt, [](Strategy& s) { s.train = {"*norm*"}; }) ==
        asked + "with --train is not modelled yet");
  const planner::ModelParts parts = parts_of("llama-2-7b", kPrompt, "5.17.0");
  CHECK(parts.virtual_tokens == 20);
  CHECK(parts.runs.front().input_grad);  // the first layer's too
  Strategy s;
  s.lora = kPrompt;
  const models::ModelSpec gpt2 = models::catalog_model("gpt2");
  planner::Question question{.model = &gpt2, .strategy = s, .batch = {.seq_len = 1004}};
  CHECK(planner::plan(question).trainable_parameters == Count(20 * 768));
  question.batch.seq_len = 1005;  // 1024 positions
  CHECK_THROWS_WITH_AS(planner::plan(question),
                       "--seq-len 1005 behind --virtual-tokens 20: gpt2 takes at most 1024 "
                       "positions",
                       Error);
}

TEST_CASE("of several adapters one is trained, and the others are held") {
  const Lora three{.rank = 4, .targets = {"q_proj"}, .adapters = 3};
  const planner::ModelParts parts = parts_of("llama-2-7b", three, "5.17.0");
  int held = 0, trained = 0;
  for (const planner::Parameter& p : parts.runs.front().layer(0).parameters) {
    held += p.adapter ? 1 : 0;
    trained += p.adapter && p.trainable ? 1 : 0;
  }
  CHECK(held == 6);
  CHECK(trained == 2);
  const models::ModelSpec llama = models::catalog_model("llama-2-7b");
  planner::Question question{.model = &llama, .batch = {.seq_len = 128}};
  question.strategy.lora = three;
  const reports::Plan plan = planner::plan(question);
  CHECK(plan.trainable_parameters == Count(32 * 2 * 4 * 4096));
  CHECK(plan.parameters == llama.parameter_count() + Count(3 * 32 * 2 * 4 * 4096));
  CHECK(refusal(three, [](Strategy& s) { s.gpus = 8, s.data.zero = 3; }) ==
        "--adapters with FSDP is not modelled yet");
  const Lora dora{.rank = 4, .targets = {"q_proj"}, .dora = true, .adapters = 2};
  CHECK(no_parts("llama-2-7b", dora, "5.17.0").starts_with("--adapters is modelled with LoRA"));
}

TEST_CASE("stacked experts have adapters by parameter, those of a loop by linear") {
  const Lora stacked{.rank = 4, .targets = {"q_proj"}, .parameters = {"experts.down_proj"}};
  const planner::ModelParts parts = parts_of("mixtral-8x7b", stacked, "5.17.0");
  const planner::LayerPart& layer = parts.runs.front().layer(0);
  CHECK(layer.experts.front().down_rank == 4);
  CHECK(layer.experts.front().gate_up_rank == 0);
  CHECK(no_parts("mixtral-8x7b", stacked, "4.57.0").find("no parameter before Transformers 5.0") !=
        std::string::npos);

  const Lora linears{.rank = 4, .targets = {"w1", "w2", "w3"}};
  const planner::ModelParts looped = parts_of("mixtral-8x7b", linears, "4.57.0");
  int adapted = 0;
  for (const planner::LinearPart& linear : looped.runs.front().layer(0).linears)
    adapted += linear.adapter == planner::Adapter::lora ? 1 : 0;
  CHECK(adapted == 8 * 3);
  CHECK(no_parts("mixtral-8x7b", linears, "5.17.0")
            .find("one parameter and no linear modules in Transformers 5") != std::string::npos);
}
