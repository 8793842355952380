// --torch-version: what older releases record, keep and refuse. Whole runs of them are held against
// torch's own allocator in dry_runs_test.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "planner/plan.h"
#include "planner/stacks/pytorch/stack.h"

using namespace plimsoll;
using models::Release;

namespace {

models::Strategy strategy(const Release& torch, const Release& transformers) {
  models::Strategy s;
  s.torch = torch;
  s.transformers = transformers;
  s.precision = models::Precision::bf16;
  return s;
}

// How often an op of this name stands in the program, layers unrolled once.
std::ptrdiff_t ops(const char* model, const models::Strategy& s, std::string_view name) {
  const models::ModelSpec spec = models::catalog_model(model);
  const planner::ModelParts parts = planner::model_parts(spec, s);
  models::StepProgram program;
  planner::pytorch::step_writer(program, parts, s, {.seq_len = 64, .micro_batch = 2},
                                planner::pytorch::Rules())
      ->write();
  return std::ranges::count_if(program.ops, [&](const models::Op& op) { return op.name == name; });
}

reports::Plan plan_of(const char* name, const models::Strategy& s, const char* gpu) {
  const models::ModelSpec model = models::catalog_model(name);
  planner::Question question;
  question.model = &model;
  question.strategy = s;
  question.batch = {.seq_len = 512};
  question.cluster.gpu = models::find_gpu(gpu);
  question.remedies = false;
  return planner::plan(question);
}

std::string refusal(const char* name, const models::Strategy& s) {
  try {
    plan_of(name, s, "a100-80gb");
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

}  // namespace

// lm_head reads hidden_states[:, 0:, :]: three slices, each of which writes its gradient into zeros
// (slice_backward) where the index of a whole axis is one.
TEST_CASE("before 2.9 the head's input has a slice for each of its axes") {
  const Release transformers{5, 17, 0};
  const auto gradients = [&](const Release& torch) {
    return ops("llama-3.2-1b", strategy(torch, transformers), "lm_head.input.grad");
  };
  CHECK(gradients({2, 9, 0}) == gradients(models::kTorch));
  CHECK(gradients({2, 8, 0}) == gradients(models::kTorch) + 3);
  CHECK(gradients({2, 5, 1}) == gradients(models::kTorch) + 3);
}

TEST_CASE("GPT-2's head reads the hidden states themselves before Transformers 4.53") {
  const auto more = [](const Release& transformers) {
    return ops("gpt2", strategy({2, 8, 0}, transformers), "lm_head.input.grad") -
           ops("gpt2", strategy(models::kTorch, transformers), "lm_head.input.grad");
  };
  CHECK(more({4, 52, 4}) == 0);
  CHECK(more({4, 53, 0}) == 3);
}

// repeat_kv: hidden_states[:, :, None, :, :].expand(…), before 4.54 in front of SDPA: four slices
// of keys and four of values; of one layer, since layers are stored once.
TEST_CASE("before 2.9 repeated keys and values have four slices each") {
  const auto gradients = [](const Release& torch, const Release& transformers, const char* name) {
    return ops("llama-3.2-1b", strategy(torch, transformers), name);
  };
  for (const char* name : {"self_attn.k.grad", "self_attn.v.grad"}) {
    const auto usual = gradients(models::kTorch, {4, 48, 3}, name);
    CHECK(usual > 0);
    CHECK(gradients({2, 8, 0}, {4, 48, 3}, name) == 5 * usual);
    CHECK(gradients({2, 8, 0}, {4, 57, 6}, name) == gradients(models::kTorch, {4, 57, 6}, name));
  }
}

// The 1 MiB that cuBLASLt keeps for GEMMs with a bias stands in the workspaces of 2.9 and later.
TEST_CASE("cuBLASLt keeps no workspace before 2.9") {
  const auto workspaces = [](const char* model, const Release& torch) {
    for (const reports::Assumption& one :
         plan_of(model, strategy(torch, {5, 17, 0}), "h100").assumptions)
      if (one.what.starts_with("cuBLAS workspaces")) return std::stoll(one.value);
    return 0LL;
  };
  CHECK(workspaces("gpt2", {2, 10, 0}) == (64 << 20) + (1 << 20));
  CHECK(workspaces("gpt2", {2, 8, 0}) == 64 << 20);
  CHECK(workspaces("llama-3.2-1b", {2, 8, 0}) == workspaces("llama-3.2-1b", models::kTorch));
}

// torch._fused_sdp_choice on compute capability 9.0: cuDNN with 2.11 (cuDNN 9.19), flash before.
TEST_CASE("SDPA asks cuDNN first on Hopper from 2.11 on") {
  const auto kernel = [](const Release& torch) {
    for (const reports::Assumption& one :
         plan_of("llama-3.2-1b", strategy(torch, {5, 17, 0}), "h100").assumptions)
      if (one.what.starts_with("kernel behind")) return one.value;
    return std::string();
  };
  CHECK(kernel({2, 10, 0}) == "\"flash\"");
  CHECK(kernel({2, 5, 1}) == "\"flash\"");
  CHECK(kernel(models::kTorch) == "\"cudnn\"");
}

TEST_CASE("what no run of an older PyTorch was compared with is refused by name") {
  const auto asked = [](auto change, const Release& torch = {2, 8, 0},
                        const Release& transformers = {5, 17, 0}) {
    models::Strategy s = strategy(torch, transformers);
    change(s);
    return refusal("llama-3.2-1b", s);
  };
  const auto nothing = [](models::Strategy&) {};
  CHECK(asked(nothing) == "");
  CHECK(asked(nothing, {2, 4, 1}, {4, 57, 6}) == "");
  CHECK(asked(nothing, {2, 4, 1}) ==
        "--torch-version 2.4.1 with Transformers 5.17.0, which needs 2.5.0; say "
        "--transformers-version");
  CHECK(asked(nothing, {2, 5, 0}) ==
        "--torch-version 2.5.0 is not modelled (2.5.1 is): which kernel its SDPA asks first was "
        "not read");
  const auto sharded = [](models::Strategy& s) {
    s.gpus = 2;
    s.data.zero = 3;
  };
  CHECK(asked(sharded, {2, 6, 0}) == "");
  CHECK(asked(sharded, {2, 5, 1}).starts_with("--torch-version 2.5.1 with FSDP2: "));
  CHECK(asked([](models::Strategy& s) { s.compile = models::Compile::block; }) ==
        "--torch-version 2.8.0 with --compile is not modelled yet (2.11.0 is)");
  CHECK(asked([](models::Strategy& s) {
          s.optimizer = models::Optimizer::adafactor;
        }).starts_with("--torch-version 2.8.0 with optimizers other than "));
  // bitsandbytes' ran with 2.4 (dry_runs_bitsandbytes_*.json).
  CHECK(asked([](models::Strategy& s) { s.optimizer = models::Optimizer::adam8bit; }) == "");
  CHECK(asked([](models::Strategy& s) { s.attention = models::Attention::math; }) != "");
  CHECK(asked([](models::Strategy& s) { s.kernels = models::Kernels::liger; }) != "");
  CHECK(asked([](models::Strategy& s) { s.loss = models::Loss::chunked; }) != "");
  CHECK(asked([](models::Strategy& s) { s.rows = models::Rows::padded; }) != "");
  CHECK(refusal("gemma-2b", strategy({2, 8, 0}, {5, 17, 0})) ==
        "--torch-version 2.8.0 with steps of gemma is not modelled yet (2.11.0 is)");
}
