// Q-GaLore (q_galore_torch 1.0): what it keeps, whole steps of the package on torch's own
// allocator, and what is refused.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "models/optimizer_states.h"
#include "planner/plan.h"
#include "tests/planner/dry_run_checks.h"
#include "tests/planner/oracle_workload.h"
#include "tests/planner/refusal_rows.h"

using namespace plimsoll;
using models::Optimizer;
using models::SteppedTensor;
using tests::check_refusals;
using tests::json;
using tests::kNothing;
using tests::Refusable;

namespace {

std::string kept(const SteppedTensor& tensor) {
  std::string out;
  models::Strategy strategy{.optimizer = Optimizer::q_galore};
  strategy.bitsandbytes = {0, 43, 3};
  for (const models::KeptState& state : models::kept_states(strategy, tensor))
    out += std::string(state.name) + " " + std::to_string(state.bytes.value()) + "; ";
  return out;
}

// What the package's tensors take, before the allocator rounds them.
Bytes states_of(const json& run) {
  const models::Strategy s = tests::strategy_of(run["workload"]);
  const models::ModelSpec model = tests::model_of(run["workload"]["model"]);
  Bytes all;
  for (const models::ParameterRow& row : model.parameters) {
    if (row.tied) continue;
    using models::ModuleKind;
    SteppedTensor tensor{
        .elements = row.shape.elements().value(),
        .dtype = s.precision == models::Precision::bf16 ? DType::bf16 : DType::fp32,
        .embedding = row.module == ModuleKind::embedding,
        .hidden = row.module == ModuleKind::linear};
    if (row.shape.rank == 2) tensor.rows = row.shape.axes[0], tensor.columns = row.shape.axes[1];
    tensor.rank = models::rank_of(s, tensor);
    Bytes of_one;
    for (const models::KeptState& state : models::kept_states(s, tensor)) of_one += state.bytes;
    // An optimizer's own tables of 256 values of fp32, one for each moment.
    if (s.optimizer_in_backward &&
        models::in_blocks(models::rule_of(s.optimizer).torch.blocks, tensor))
      of_one += Bytes(2 * 256 * 4);
    all += of_one * row.instances();
  }
  return s.optimizer_in_backward ? all : all + Bytes(2 * 256 * 4);
}

}  // namespace

TEST_CASE("Q-GaLore keeps a byte a value of a basis, and a scale and a zero for each 256") {
  // A 512 by 320 gradient at rank 64: 20,480 values in 80 groups; the first vector has 320. The
  // moments have 64 * 512 values, 16 blocks of 2,048 (bitsandbytes before 0.44).
  SteppedTensor matrix{
      .elements = 512 * 320, .dtype = DType::bf16, .rows = 512, .columns = 320, .rank = 64};
  CHECK(kept(matrix) ==
        "projector 20480; projector_scales 160; projector_zeros 160; past_ortho_vector 640; "
        "exp_avg 32768; exp_avg_sq 32768; exp_avg.absmax 64; exp_avg_sq.absmax 64; ");
  matrix.dtype = DType::fp32;
  CHECK(kept(matrix) ==
        "projector 20480; projector_scales 320; projector_zeros 320; past_ortho_vector 1280; "
        "exp_avg 32768; exp_avg_sq 32768; exp_avg.absmax 64; exp_avg_sq.absmax 64; ");
  // Below 4,096 projected values they are in fp32; what is not projected is AdamW's in 8 bits.
  matrix.rank = 4;
  CHECK(kept(matrix) ==
        "projector 1280; projector_scales 20; projector_zeros 20; past_ortho_vector 1280; "
        "exp_avg 8192; exp_avg_sq 8192; ");
  CHECK(kept({.elements = 8192, .dtype = DType::bf16, .embedding = true}) ==
        "exp_avg 8192; exp_avg_sq 8192; exp_avg.absmax 16; exp_avg_sq.absmax 16; ");
}

// Six of models that people train, ten small ones drawn by one seed: shapes, precision, rank,
// checkpoints, steps within the backward, batch. PyTorch 2.4.1, Transformers 4.45.2, bitsandbytes
// 0.43.3. The drawn ones' weights, which each step clones, lie in blocks that were not split: of
// drawn-7 torch counts 30.7 MB more than was asked for, of drawn-8 33.0.
TEST_CASE("full-size steps with q_galore_torch are planned as torch's allocator took them") {
  tests::check_runs("dry_runs_q_galore.json",
                    {{"q-galore-drawn-0", "peak 0.41 %, resident 0.76 %, reserved 8.7 %"},
                     {"q-galore-drawn-2", "peak 0.26 %, resident 0.48 %, reserved 12 %"},
                     {"q-galore-drawn-3", "peak 0.13 %, resident 0.34 %"},
                     {"q-galore-drawn-7", "peak 0.60 %, resident 2.6 %"},
                     {"q-galore-drawn-8", "peak 0.24 %"},
                     {"q-galore-drawn-9", "resident 0.22 %"}},
                    16);
}

TEST_CASE("its states are the package's, to the byte") {
  const json document = json::parse(std::ifstream(PLIMSOLL_GOLDEN "/dry_runs_q_galore.json"));
  REQUIRE(document["runs"].size() == 16);
  for (const json& run : document["runs"]) {
    CAPTURE(run["case"].get<std::string>());
    CHECK(states_of(run).value() == run["optimizer_bytes"].get<std::int64_t>());
  }
}

TEST_CASE("it is refused with what stops it, and wherever GaLore is") {
  const auto q_galore = [](Refusable& a) {
    a.s.optimizer = Optimizer::q_galore;
    a.s.bitsandbytes = {0, 43, 3};
    a.s.torch = {2, 4, 1};
    a.s.transformers = {4, 45, 2};
  };
  check_refusals(
      {
          {kNothing, [](Refusable&) {}},
          {"--bitsandbytes-version 0.44.0 with --optimizer q-galore: q_galore_torch 1.0 stops with "
           "\"TypeError: optimizer_update_8bit_blockwise() missing 1 required positional "
           "argument\"; it steps with 0.43 and before: say --bitsandbytes-version 0.43.3,",
           [](Refusable& a) {
             a.s.bitsandbytes = {0, 44, 0};
           }},
          {"--bitsandbytes-version 0.50.2 with --optimizer q-galore: q_galore_torch 1.0 stops with "
           "\"KeyError: 'percentile_clipping'\"",
           [](Refusable& a) { a.s.bitsandbytes = models::kBitsandbytes; }},
          {"--bitsandbytes-version 0.43.3 with PyTorch 2.11.0: its import stops",
           [](Refusable& a) { a.s.torch = models::kTorch; }},
          {"--optimizer q-galore on several GPUs", [](Refusable& a) { a.s.gpus = 2; }},
          {"--optimizer q-galore with --zero 1: GaLore inside",
           [](Refusable& a) { a.s.gpus = 2, a.s.data.zero = 1; }},
          {"--optimizer q-galore with --zero 3: GaLore projects whole matrices; FSDP1's",
           [](Refusable& a) { tests::shard_by_fsdp(a, 1); }},
          {"--optimizer q-galore with --lora-rank", [](Refusable& a) { a.s.lora.emplace(); }},
          {"--optimizer q-galore with --precision fp16-mixed",
           [](Refusable& a) { a.s.precision = models::Precision::fp16_mixed; }},
          {"--optimizer-impl fused: q_galore_torch steps --optimizer q-galore",
           [](Refusable& a) { a.s.optimizer_impl = models::OptimizerImpl::fused; }},
          {kNothing, [](Refusable& a) { a.s.optimizer_in_backward = true; }},
          // 7 * 4,096 values are 112 groups; 7 * 576 are 15.75.
          {kNothing, [](Refusable& a) { a.s.galore_rank = 7; }},
          {"--optimizer q-galore with --galore-rank 7: the 4032 values of the basis of "
           "model.layers.{}.self_attn.q_proj.weight are no multiple of 256",
           [](Refusable& a) { a.model = "smollm2-135m", a.s.galore_rank = 7; }},
      },
      q_galore);
}
