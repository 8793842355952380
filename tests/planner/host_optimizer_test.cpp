// torchao's optimizer on the host (models/host_optimizer.h): full-size steps as
// torch's own allocators had them, what the host keeps, and what is refused.
#include <doctest/doctest.h>

#include "models/model_catalog.h"
#include "planner/plan.h"
#include "tests/planner/dry_run_checks.h"
#include "tests/planner/refusal_rows.h"

using namespace plimsoll;
using models::Optimizer;
using models::OptimizerImpl;
using tests::check_host;
using tests::check_refusals;
using tests::check_runs;
using tests::kNothing;
using tests::Refusable;
using tests::shard_by_fsdp;

TEST_CASE("full-size steps with torchao's optimizer on the host are planned") {
  // As without offloading: packed weights lie in larger blocks that were left while loading.
  check_runs("dry_runs_host_optimizer.json",
             {{"qwen2.5-7b-nf4-dq-kbit-gradients-full", "peak 0.16 %, resident 0.37 %"}}, 17);
  check_host("dry_runs_host_optimizer.json");
}

// Families, precision, adapters, a base in NF4, offloaded activations, optimizer and batch by one
// seed: 23 peaks within 0.003 %; the other is that base's, as above.
TEST_CASE("so are those that were drawn when the plan was done") {
  check_runs("dry_runs_host_optimizer_draw.json", {{"21-llama-2-13b", "peak 0.19 %"}}, 24);
  check_host("dry_runs_host_optimizer_draw.json");
}

TEST_CASE("torchao's optimizer on the host is planned on one GPU, around torch.optim's") {
  const auto offload = [](Refusable& a) {
    a.model = "llama-3.2-1b", a.s.offload = {.optimizer = true, .gradients = true};
  };
  check_refusals(
      {
          {kNothing, [](Refusable&) {}},
          {"--offload gradients goes with optimizer",
           [](Refusable& a) { a.s.offload.optimizer = false; }},
          {"--offload optimizer on several GPUs", [](Refusable& a) { a.s.gpus = 2; }},
          {"--offload optimizer with --zero 2 or 3", [](Refusable& a) { a.s.data.zero = 3; }},
          {"--offload gradients with params",
           [](Refusable& a) { shard_by_fsdp(a), a.s.offload.params = true; }},
          {"--offload optimizer with --offload-pin no",
           [](Refusable& a) { a.s.offload.pinned = false; }},
          {"--offload optimizer on stack pytorch is modelled with adamw, sgd and momentum",
           [](Refusable& a) { a.s.optimizer = Optimizer::adagrad; }},
          {kNothing, [](Refusable& a) { a.s.optimizer = Optimizer::sgd; }},
          {kNothing, [](Refusable& a) { a.s.optimizer = Optimizer::momentum; }},
          {kNothing, [](Refusable& a) { a.s.optimizer_impl = OptimizerImpl::fused; }},
          {"--offload optimizer steps AdamW fused",
           [](Refusable& a) { a.s.optimizer_impl = OptimizerImpl::foreach; }},
          {"--offload optimizer with --optimizer-in-backward",
           [](Refusable& a) { a.s.optimizer_in_backward = true; }},
          {"--offload optimizer with --precision fp16-mixed",
           [](Refusable& a) { a.s.precision = models::Precision::fp16_mixed; }},
          {"--offload optimizer,gradients with --grad-accum",
           [](Refusable& a) { a.batch.grad_accum = 2; }},
          {kNothing, [](Refusable& a) { a.batch.grad_accum = 2, a.s.offload.gradients = false; }},
          {kNothing, [](Refusable& a) { a.s.offload.activations = true; }},
      },
      offload);
}

// GPT-2, fp32: 768 wide, 12 layers, 50,257 words, 1,024 positions. Of 4,096 elements and more are
// the two tables and each layer's four matrices, not the biases of up to 3,072 nor the norms: a
// copy and a gradient of each, pinned in powers of two, and two moments as they are. What is
// smaller, 13 times 768 a layer (two norms, four biases) and the last norm, has its moments on the
// device, and fused AdamW's counters, 512 bytes each as the allocator rounds.
TEST_CASE("the host keeps a copy, a gradient and the moments of what is not small") {
  const models::ModelSpec model = models::catalog_model("gpt2");
  planner::Question question;
  question.model = &model;
  question.batch = {.seq_len = 16};
  question.strategy.offload = {.optimizer = true};
  const std::int64_t kib = 1 << 10, mib = kib * kib, h = 768, layers = 12;
  const std::int64_t tables = (50257 + 1024) * h, matrices = (3 + 1 + 4 + 4) * h * h;
  const reports::Plan plan = planner::plan(question);
  CHECK(plan.host_pinned == Bytes(2 * ((256 + 4) * mib + layers * (8 + 4 + 16 + 16) * mib)));
  CHECK(plan.host_pageable == Bytes(2 * 4 * (tables + layers * matrices)));
  const std::int64_t vectors = 8, wide = (2 + 2 + 1 + 1 + 3 + 4) * h;
  const std::int64_t small = layers * wide + 2 * h, counters = layers * vectors + 2;
  CHECK(plan.states.optimizer == Bytes(2 * 4 * small + 512 * counters));
  CHECK(plan.states.gradients == Bytes(4 * (tables + layers * matrices + small)));
  CHECK_FALSE(plan.time.step_seconds.has_value());
  question.strategy.offload.gradients = true;
  const reports::Plan less = planner::plan(question);
  CHECK(less.states.gradients == Bytes(4 * small));
  CHECK(less.host_pinned == plan.host_pinned);
  CHECK(less.peak < plan.peak);
}
