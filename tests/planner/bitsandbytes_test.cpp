// Releases of bitsandbytes: what of a step is another one's. Histories of their steps are in
// tests/golden/pytorch_steps (*-bnb*), full-size runs in dry_runs_bitsandbytes_*.json.
#include "models/bitsandbytes.h"
#include "models/optimizer_states.h"
#include "tests/planner/dry_run_checks.h"
#include "tests/planner/refusal_rows.h"

using namespace plimsoll;
using models::Release;
using tests::check_refusals;
using tests::check_runs;
using tests::kNothing;
using tests::pack_base;
using tests::Refusable;

namespace {

// Of one state: values that share a scale of 4 bytes.
std::int64_t scale_bytes(Release release, std::int64_t elements) {
  models::Strategy s{.bitsandbytes = release};
  s.optimizer = models::Optimizer::adam8bit;
  for (const models::KeptState& state : models::kept_states(s, {.elements = elements}))
    if (std::string(state.name) == "exp_avg.absmax") return state.bytes.value();
  return 0;
}

// What Transformers 4.57 on PyTorch 2.4 runs with any of them.
void of_release(Refusable& a, Release release) {
  pack_base(a, "nf4-dq");
  a.s.bitsandbytes = release;
  a.s.transformers = {4, 57, 0};
  a.s.torch = {2, 4, 0};
}

}  // namespace

TEST_CASE("states in 8 bits have a scale for each 2,048 values before 0.44, then for each 256") {
  // 1,000,000 / 2,048 = 488.3, / 256 = 3906.25.
  CHECK(scale_bytes({0, 43, 3}, 1'000'000) == 489 * 4);
  CHECK(scale_bytes({0, 44, 0}, 1'000'000) == 3907 * 4);
  CHECK(scale_bytes(models::kBitsandbytes, 1'000'000) == 3907 * 4);
}

TEST_CASE("what a plan runs of bitsandbytes is its packed bases and its optimizers") {
  models::Strategy s;
  CHECK_FALSE(models::runs_bitsandbytes(s));
  s.quantize = models::Quantization{.storage = models::find_packed_storage("awq")};
  CHECK_FALSE(models::runs_bitsandbytes(s));
  s.quantize->storage = models::find_packed_storage("fp4");
  CHECK(models::runs_bitsandbytes(s));
  s.quantize.reset();
  for (const auto optimizer : {models::Optimizer::paged_adamw, models::Optimizer::lion8bit}) {
    s.optimizer = optimizer;
    CHECK(models::runs_bitsandbytes(s));
  }
}

TEST_CASE("a linear of 4 bits holds its input until 0.43.1, and one of 8 bits in every release") {
  models::Strategy s;
  const auto holds = [&](const char* storage, Release release) {
    s.quantize = models::Quantization{.storage = models::find_packed_storage(storage)};
    s.bitsandbytes = release;
    return models::contexts_keep_inputs(s);
  };
  CHECK(holds("nf4", {0, 43, 1}));
  CHECK_FALSE(holds("nf4", {0, 43, 2}));
  CHECK(holds("int8", {0, 43, 2}));
  CHECK(holds("int8", models::kBitsandbytes));
  CHECK_FALSE(holds("gptq", {0, 43, 1}));
}

TEST_CASE("a release is refused by what it does not have, and what it stops with") {
  check_refusals({
      {kNothing,
       [](Refusable& a) {
         of_release(a, {0, 42, 0});
       }},
      {kNothing,
       [](Refusable& a) {
         of_release(a, {0, 43, 3});
       }},
      {"--bitsandbytes-version 0.46.0: Transformers 5.17.0 asks for 0.46.1",
       [](Refusable& a) {
         of_release(a, {0, 46, 0}), a.s.torch = models::kTorch,
                                    a.s.transformers = models::kTransformers;
       }},
      {kNothing,
       [](Refusable& a) {
         of_release(a, {0, 46, 1}), a.s.torch = models::kTorch,
                                    a.s.transformers = models::kTransformers;
       }},
      {"--bitsandbytes-version 0.45.0 with PyTorch 2.11.0: its import stops",
       [](Refusable& a) {
         of_release(a, {0, 45, 0}), a.s.torch = models::kTorch;
       }},
      {kNothing,
       [](Refusable& a) {
         of_release(a, {0, 45, 1}), a.s.torch = models::kTorch;
       }},
      {"--bitsandbytes-version 0.44.1 with --quantize int8: LLM.int8() in the layouts",
       [](Refusable& a) {
         of_release(a, {0, 44, 1});
         pack_base(a, "int8");
         a.s.torch = models::kTorch;
       }},
      {"--bitsandbytes-version 0.42.0 has no bnb_4bit_quant_storage",
       [](Refusable& a) {
         of_release(a, {0, 42, 0});
         pack_base(a, "nf4", DType::bf16);
         tests::shard_by_fsdp(a, 1);
       }},
      {"--bitsandbytes-version 0.42.0 with --kernels fused: weights that are packed as halves",
       [](Refusable& a) {
         of_release(a, {0, 42, 0});
         a.s.kernels = models::Kernels::fused;
         a.s.quantize->kbit_prep = false;
         a.s.param_dtype = DType::bf16;
       }},
      // Of an optimizer's package, too; and of nothing else.
      {"--bitsandbytes-version 0.43.3 has no AdEMAMix",
       [](Refusable& a) {
         a.s.bitsandbytes = {0, 43, 3};
         a.s.transformers = {4, 57, 0};
         a.s.torch = {2, 4, 0};
         a.s.optimizer = models::Optimizer::ademamix8bit;
       }},
      {kNothing,
       [](Refusable& a) {
         a.s.bitsandbytes = {0, 41, 0};
       }},
  });
}

// As with 0.50.2 (dry_runs_test.cpp): weights that are packed lie in blocks that earlier ones left.
// Mistral's with torch 2.4 and Transformers 4.45 reaches one fp32 stream more (17 MB).
TEST_CASE("full-size steps of 0.42, 0.43.3 and 0.46.1 are planned as torch's allocator took them") {
  check_runs("dry_runs_bitsandbytes_0.42.json",
             {{"llama-2-7b-nf4-dq-kbit-full", "peak 0.13 %, resident 0.56 %"},
              {"mistral-7b-v0.1-nf4-fp16-dropout-accum2", "peak 0.13 %"},
              {"llama-3.2-3b-nf4-kbit-ddp8-full", "resident 0.38 %"}},
             10);
  check_runs("dry_runs_bitsandbytes_0.43.json",
             {{"llama-2-7b-nf4-dq-kbit-full", "peak 0.30 %, resident 0.56 %"},
              {"mistral-7b-v0.1-nf4-fp16-dropout-accum2", "peak 0.14 %"},
              {"llama-3.2-3b-nf4-kbit-ddp8-full", "peak 0.13 %, resident 0.38 %"},
              {"santacoder-nf4-dq-kbit-casting-accelerated", "peak 0.27 %, resident 2.9 %"}},
             13);
  check_runs("dry_runs_bitsandbytes_0.46.json",
             {{"llama-2-7b-nf4-dq-kbit-full", "peak 0.30 %, resident 0.56 %"},
              {"llama-3.2-3b-nf4-kbit-ddp8-full", "peak 0.13 %, resident 0.38 %"}},
             10);
}

// Storage, loading, precision, checkpoints, adapters, optimizer, DDP and batch by one seed; two
// that checkpoint two layers at once did not run with Transformers 4.45. What is off is where
// weights lie that were packed one after another.
TEST_CASE("so are steps that were drawn when the plan was done") {
  check_runs("dry_runs_bitsandbytes_draw_0.42.json",
             {{"4-llama-3.2-3b", "peak 0.26 %, resident 0.84 %"},
              {"5-mistral-7b-v0.1", "peak 0.13 %"},
              {"6-llama-3.2-3b", "peak 0.17 %, resident 0.81 %"},
              {"8-llama-3.2-3b", "resident 0.65 %"}},
             8);
  check_runs("dry_runs_bitsandbytes_draw_0.46.json",
             {{"4-llama-3.2-3b", "peak 0.35 %, resident 0.84 %"},
              {"6-llama-3.2-3b", "peak 0.18 %, resident 0.81 %"},
              {"8-llama-3.2-3b", "peak 0.25 %, resident 0.65 %"}},
             10);
}
