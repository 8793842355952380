// --attention xformers: what Unsloth calls on cards before Ampere.
#include <doctest/doctest.h>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "planner/memory/caching_allocator.h"
#include "planner/plan.h"
#include "tests/planner/dry_run_checks.h"

using namespace plimsoll;
using models::Attention;
using models::Precision;
using models::Stream;
using tests::check_runs;

namespace {

// As `--trainer unsloth --gpu t4` asks.
planner::Question on(const models::ModelSpec& model, const char* gpu) {
  planner::Question question;
  question.model = &model;
  models::Strategy& s = question.strategy;
  s.kernels = models::Kernels::unsloth;
  s.transformers = models::Release{4, 57, 2};
  s.attention = Attention::xformers;
  s.precision = Precision::fp16_mixed;
  s.param_dtype = DType::fp16;
  s.lora = models::Lora{.rank = 16, .targets = {"all-linear"}};
  s.loss = models::Loss::fused;
  s.recompute = {.kind = models::RecomputeKind::full};
  s.offload.activations = true;
  question.batch = {.seq_len = 2048, .micro_batch = 2};
  if (gpu != nullptr) question.cluster.gpu = models::find_gpu(gpu);
  return question;
}

std::string refusal(const planner::Question& question) {
  try {
    planner::plan(question);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

bool starts(const std::string& text, const char* with) {
  return text.starts_with(with);
}

}  // namespace

TEST_CASE("xformers: Unsloth alone, in fp16, before Ampere, within a window") {
  const models::ModelSpec llama = models::catalog_model("llama-3.2-1b");
  const models::ModelSpec mistral = models::catalog_model("mistral-7b-v0.1");
  CHECK(refusal(on(llama, "t4")) == "");
  CHECK(refusal(on(llama, "v100-sxm-32gb")) == "");
  CHECK(starts(refusal(on(llama, nullptr)), "--attention xformers calls other kernels"));
  CHECK(starts(refusal(on(llama, "l4")),
               "--attention xformers is modelled on GPUs of NVIDIA below compute capability 8.0, "
               "and l4 has 8.9"));
  planner::Question bf16 = on(llama, "t4");
  bf16.strategy.precision = Precision::bf16_mixed;
  bf16.strategy.param_dtype = DType::bf16;
  CHECK(starts(refusal(bf16), "--attention xformers computes in bf16 from compute capability"));
  planner::Question eager = on(llama, "t4");
  eager.strategy.kernels = models::Kernels::eager;
  eager.strategy.loss = models::Loss::full;
  eager.strategy.offload.activations = false;
  CHECK(starts(refusal(eager), "--attention xformers is what Unsloth calls"));
  planner::Question window = on(mistral, "t4");
  CHECK(refusal(window) == "");
  window.batch.seq_len = 4096;
  CHECK(refusal(window) == "");
  window.batch.seq_len = 4104;
  CHECK(starts(refusal(window), "--attention xformers with sequences longer than the model's"));
}

// In a checkpoint's forward 7 of 8 groups' results lie on streams of their own, of which PyTorch
// has 32: 2 · 2048 tokens · 4 heads · 64 · 2 bytes = 2 MiB each, for which the allocator takes 20
// MiB of each stream; 16 layers come round all of them. The kernel is called by name else.
TEST_CASE("xformers: a checkpoint's forward reserves 32 segments more") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  const planner::Question question = on(model, "t4");
  planner::Question one = question;
  one.strategy.attention = Attention::flash;
  const reports::Plan xformers = planner::plan(question);
  CHECK(xformers.reserved - xformers.peak > 32 * 20_MiB);
}

TEST_CASE("the allocator: streams in turn, a pool each, 32 of them") {
  planner::CachingAllocator allocator(planner::Room{});
  for (int i = 0; i < 32; ++i) {
    const auto block = allocator.allocate(2_MiB, Stream::next);
    allocator.free(block.value());
    CHECK(allocator.reserved() == (i + 1) * 20_MiB);
  }
  // The first stream again, which keeps its segment; that of the default stream is none of these.
  CHECK(allocator.allocate_and_free(5_MiB, Stream::next));
  CHECK(allocator.reserved() == 32 * 20_MiB);
  allocator.allocate(2_MiB, Stream::compute);
  CHECK(allocator.reserved() == 33 * 20_MiB);
  allocator.empty_cache();
  CHECK(allocator.reserved() == 20_MiB);
}

// 1,024 bytes are the scale and the count of a GradScaler. Weights in NF4 lie in blocks that
// earlier ones left.
TEST_CASE("full-size runs with xformers' attention are planned") {
  check_runs("dry_runs_xformers.json",
             {{"xformers-qwen2.5-7b-nf4-2048x2", "peak 0.32 %, resident 0.50 %"},
              {"xformers-qwen3-4b-nf4-2048x2", "peak 0.14 %, resident 0.27 %"}},
             8);
}

// By one seed: family, sizes, heads of queries and of keys, rank, NF4 or 16 bits, offloading,
// optimizer, batch. What is off are small segments of a model of 0.3 GB in NF4.
TEST_CASE("so are those that were drawn when the plan was done") {
  check_runs("dry_runs_xformers_draw.json",
             {{"xformers-drawn-6", "resident 0.22 %"}, {"xformers-drawn-13", "reserved 10 %"}}, 14);
}
