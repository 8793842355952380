// Linears in float8 (--precision fp8-mixed) against torchao's own on a CUDA runtime that computes
// nothing (tools/oracle/dry_runs.py --cases dry_runs_float8_cases.json and
// dry_runs_float8_draw.json).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string_view>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "models/model_reader.h"
#include "planner/model_parts.h"
#include "planner/plan.h"
#include "planner/stack_step.h"
#include "planner/stacks/pytorch/kernels.h"
#include "tests/planner/dry_plan.h"
#include "tests/planner/refusal_rows.h"
#include "tests/planner/to_the_byte.h"

using namespace plimsoll;
using nlohmann::json;

namespace {

struct Errors {
  std::size_t runs = 0;
  double peak = 0, reserved = 0;  // the largest
  double compiled = 0;  // of peaks inside a compiled layer's own backward
};

Errors errors_of(const char* file) {
  const json document = json::parse(std::ifstream(std::string(PLIMSOLL_GOLDEN "/") + file));
  Errors out;
  tests::ToTheByte exact;
  for (const json& run : document["runs"]) {
    const json& workload = run["workload"];
    const models::ModelSpec model =
        models::catalog_model(workload["model"]["name"].get<std::string>());
    const planner::Reserved planned = tests::plan_dry_run(workload, model).planned;
    const auto error = [](Bytes ours, const json& theirs) {
      return std::abs(ours.real() / theirs.get<double>() - 1);
    };
    const double peak = error(planned.allocated, run["peak_bytes"]),
                 reserved = error(planned.reserved, run["reserved_bytes"]);
    const bool inside = run["case"].get<std::string>().find("titan-none") != std::string::npos;
    (inside ? out.compiled : out.peak) = std::max(inside ? out.compiled : out.peak, peak);
    out.reserved = std::max(out.reserved, reserved);
    exact.count(planned, run);
    ++out.runs;
  }
  tests::check_to_the_byte(file, exact);
  return out;
}

}  // namespace

// Eager and sharded, weights gathered in bf16 and in float8, and torchtitan's compiled layers.
// Without checkpoints these peak inside a layer's own backward, whose kernels Inductor joins and
// orders otherwise: planned 1.8 % too much.
TEST_CASE("steps with linears in float8 peak as torchao's do") {
  const Errors errors = errors_of("dry_runs_float8.json");
  CHECK(errors.runs >= 20);
  CHECK(errors.peak < 0.0005);
  CHECK(errors.compiled < 0.02);
  CHECK(errors.reserved < 0.045);
}

TEST_CASE("so do those that were drawn when the rule was written") {
  const Errors errors = errors_of("dry_runs_float8_draw.json");
  CHECK(errors.runs >= 11);
  CHECK(errors.peak < 0.0012);
  CHECK(errors.reserved < 0.004);
}

// convert_model_to_fp8_ao leaves the first linear of all and the head (accelerate 1.15,
// utils/ao.py), torchtitan the head alone; a width of 8,184 is no multiple of 16.
TEST_CASE("which linears are in float8") {
  models::Strategy s;
  const auto count = [&](const char* model) {
    std::int64_t of_layers = 0;
    const planner::ModelParts parts = planner::model_parts(models::catalog_model(model), s);
    for (const planner::LayerRun& run : parts.runs)
      for (const planner::LayerPart& layer : run.pattern)
        of_layers +=
            run.repeats() * std::ranges::count_if(layer.linears, &planner::LinearPart::float8);
    CHECK(!parts.head.float8);
    return of_layers;
  };
  CHECK(count("llama-3-8b") == 0);
  s.precision = models::Precision::fp8_mixed;
  CHECK(count("llama-3-8b") == 32 * 7 - 1);
  CHECK(count("gpt2") == 0);  // Conv1D
  s.code = models::ModelCode::torchtitan_2024_12;
  CHECK(count("llama-3-8b") == 32 * 7);
}

// ATen/native/cuda/Reduce.cuh on 132 processors: torch.max asked for 0, 68, 324, 2116 and 7172
// bytes (torch 2.11 on the dry runtime), of which 4 are the counter.
TEST_CASE("what the largest of all values takes") {
  models::StepProgram program;
  planner::ProgramBuilder exact(program, 1);
  const planner::pytorch::Processors gpu{.count = 132, .threads = 2048};
  const auto bytes = [&](std::int64_t values, DType dtype) {
    return planner::pytorch::whole_reduction_scratch(exact, gpu, values, dtype).total().now();
  };
  CHECK(bytes(65536, DType::fp32) == Bytes(0));
  CHECK(bytes(131072, DType::fp32) == Bytes(68));
  CHECK(bytes(655360, DType::fp32) == Bytes(324));
  CHECK(bytes(16777216, DType::fp32) == Bytes(2116));
  CHECK(bytes(234881024, DType::fp32) == Bytes(7172));
  CHECK(bytes(655360, DType::bf16) == Bytes(164));
}

TEST_CASE("what of float8 is not planned is refused by name") {
  using tests::kNothing;
  using tests::Refusable;
  tests::check_refusals(
      {
          {kNothing, [](Refusable&) {}},
          {kNothing, [](Refusable& a) { tests::shard_by_fsdp(a), a.s.fp8_all_gather = true; }},
          {"--fp8-all-gather yes is of FSDP2", [](Refusable& a) { a.s.fp8_all_gather = true; }},
          {"--fp8-all-gather yes needs --fp8-recipe tensorwise",
           [](Refusable& a) {
             tests::shard_by_fsdp(a), a.s.fp8_all_gather = true;
             a.s.fp8_recipe = models::Fp8Recipe::rowwise;
           }},
          {"--precision fp8-mixed with gpt2: torchao casts nn.Linear",
           [](Refusable& a) { a.model = "gpt2", a.batch.seq_len = 1024; }},
          {"--precision fp8-mixed with a mixture of experts",
           [](Refusable& a) { a.model = "mixtral-8x7b"; }},
          {"--precision fp8-mixed with --fsdp-version 1",
           [](Refusable& a) { tests::shard_by_fsdp(a, 1); }},
          {"--precision fp8-mixed with adapters",
           [](Refusable& a) { a.s.lora = models::Lora{.targets = {"q_proj"}}; }},
          {"--precision fp8-mixed with --kernels other than eager",
           [](Refusable& a) { a.s.kernels = models::Kernels::liger; }},
          {"--precision fp8-mixed is modelled on fp32 weights",
           [](Refusable& a) { a.s.param_dtype = DType::bf16; }},
          {"--precision fp8-mixed with --offload",
           [](Refusable& a) { tests::shard_by_fsdp(a), a.s.offload.params = true; }},
          {"--precision fp8-mixed with --optimizer-in-backward",
           [](Refusable& a) { a.s.optimizer_in_backward = true; }},
          {"--precision fp8-mixed with rows that hold padding",
           [](Refusable& a) { a.s.rows = models::Rows::padded; }},
          {"--precision fp8-mixed with --compile is modelled with --model-code torchtitan@2024-12",
           [](Refusable& a) { a.s.compile = models::Compile::block; }},
          {"--precision fp8-mixed with 4001 tokens in a micro-batch",
           [](Refusable& a) {
             a.s.fp8_recipe = models::Fp8Recipe::rowwise;
             a.batch.seq_len = 4001;
           }},
          // Accelerate's own config pads them; of rows with gradients in 16 bits nothing is summed.
          {kNothing, [](Refusable& a) { a.batch.seq_len = 4001; }},
          {kNothing,
           [](Refusable& a) {
             a.s.fp8_recipe = models::Fp8Recipe::rowwise_with_gw_hp;
             a.batch.seq_len = 4001;
           }},
      },
      [](Refusable& a) { a.s.precision = models::Precision::fp8_mixed; });
}

// torch._scaled_mm: compute capability 8.9 and later.
TEST_CASE("a GPU without float8 is refused by name") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  planner::Question question;
  question.model = &model;
  question.strategy.precision = models::Precision::fp8_mixed;
  for (const char* gpu : {"a100-sxm-80gb", "rtx-3090", "v100-sxm-32gb"}) {
    CAPTURE(gpu);
    question.cluster.gpu = models::find_gpu(gpu);
    try {
      planner::plan(question);
      FAIL_CHECK("is planned");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::bad_input);
      CHECK(error.message().find("multiplies no float8") != std::string::npos);
    }
  }
  for (const char* gpu : {"h100-sxm-80gb", "l40s", "rtx-4090"}) {
    CAPTURE(gpu);
    question.cluster.gpu = models::find_gpu(gpu);
    CHECK(planner::plan(question).peak > Bytes(0));
  }
}

// torchao casts one shard after another: in fp32 times its scale, and that clamped. Two ranks hold
// half of each linear, of which the last has 8192 x 256 / 2 values of 4 bytes, twice; beside them
// stand the casts of all, 3,244,032 bytes. Of that the casts, with two norms in bf16 3,244,544, and
// what is gathered of both ranks, twice that, are tensors.
TEST_CASE("weights that are gathered in float8 are cast beside those that were") {
  const models::ModelSpec model = models::read_model(
      R"({"model_type": "llama", "hidden_size": 256, "vocab_size": 1000, "intermediate_size": 8192,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "max_position_embeddings": 512})",
      "llama", "llama", {});
  planner::Question question;
  question.model = &model;
  question.cluster.gpu = models::find_gpu("h100-sxm-80gb");
  question.batch = {.seq_len = 64, .micro_batch = 2};
  models::Strategy& s = question.strategy;
  s.precision = models::Precision::fp8_mixed;
  s.code = models::ModelCode::torchtitan_0_2_2;
  s.fp8_all_gather = true;
  s.gpus = 2;
  s.data.zero = 3;
  planner::StackStep step;
  planner::write_step(question, planner::model_parts(model, s), step);
  Bytes most;
  for (const models::Op& op : step.program.ops)
    if (std::string_view(op.name) == "fsdp.all_gather") most = std::max(most, op.scratch);
  CHECK(most == Bytes(3'244'032 + 2 * 4'194'304) - Bytes(3 * 3'244'544));
}
