// Kinds of ranks: what each holds, against torch's own allocator on that rank, and their sums.
//
// tests/golden/rank_runs.json: real training loops of several ranks of uneven worlds on a CUDA
// runtime that computes nothing (tools/oracle/dry_runs.py --cases rank_cases.json).
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <set>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "models/model_reader.h"
#include "planner/all_ranks.h"
#include "planner/memory/reserved.h"
#include "planner/plan.h"
#include "planner/program/peak.h"
#include "planner/program/timeline.h"
#include "planner/ranks.h"
#include "planner/stack_step.h"
#include "planner/stacks/pytorch/stack.h"
#include "tests/planner/oracle_workload.h"

using namespace plimsoll;
using nlohmann::json;

namespace {

models::ModelSpec model_of(const json& model) {
  const std::string name = model["name"];
  if (model.contains("config")) return models::read_model(model["config"].dump(), name, name, {});
  return models::catalog_model(name);
}

struct Planned {
  Bytes peak, resident, optimizer;
  std::vector<planner::EqualRanks> ranks;
};

Planned plan_rank(const json& workload, std::int64_t rank) {
  const models::ModelSpec model = model_of(workload["model"]);
  const models::Strategy strategy = tests::strategy_of(workload);
  const planner::ModelParts parts = planner::model_parts(model, strategy);
  planner::pytorch::Rules rules;
  rules.sdpa = planner::pytorch::Rules::Sdpa::flash;  // what a dry run can run
  rules.fsdp_autocast = workload["stack"]["fsdp_autocast"];
  rules.batch_tensors = 1;
  rules.rank = rank;
  const planner::LayerPart& layer = parts.runs.front().pattern.front();
  // sm_90: 32 MiB for the forward's and for the backward's thread; 1 MiB where GEMMs add a bias.
  rules.blas = {32_MiB, 32_MiB, layer.linears.front().bias ? 1_MiB : 0_MiB};
  models::StepProgram program;
  const auto writer =
      planner::pytorch::step_writer(program, parts, strategy, tests::batch_of(workload), rules);
  writer->write();
  planner::Start start;
  writer->add_start(start);
  const planner::Timeline timeline = planner::unroll(program);
  const planner::Reserved allocator = planner::replay(program, timeline, {}, start);
  return {allocator.allocated, allocator.resident, writer->states().optimizer, writer->ranks()};
}

struct World {
  models::ModelSpec model;
  planner::Question question;
  World(const char* name, models::Stack stack, int zero, std::int64_t gpus)
      : model(models::catalog_model(name)) {
    question.cluster.gpu = models::find_gpu("h100-sxm-80gb");
    question.batch.seq_len = 512;
    question.strategy.stack = stack;
    question.strategy.gpus = gpus;
    question.strategy.data.zero = zero;
    question.remedies = false;
    question.detail = planner::Detail::none;
  }
  reports::Plan plan() {
    question.model = &model;
    return planner::plan(question);
  }
};

}  // namespace

TEST_CASE("each rank's peak and states are what torch's allocator has on that rank") {
  const json document = json::parse(std::ifstream(PLIMSOLL_GOLDEN "/rank_runs.json"));
  int exact = 0, runs = 0;
  for (const json& run : document["runs"]) {
    const std::string name = run["case"];
    const std::int64_t rank = run["rank"];
    CAPTURE(name);
    CAPTURE(rank);
    const Planned planned = plan_rank(run["workload"], rank);
    const auto off = [&](Bytes bytes, const char* key) {
      return std::abs(bytes.real() / run[key].get<double>() - 1);
    };
    // Blocks that were not worth splitting count whole, up to 1 MiB each of these 0.1 GB.
    CHECK(off(planned.peak, "peak_bytes") <= 0.0025);
    CHECK(off(planned.resident, "resident_bytes") <= 0.004);
    // The allocator's multiples of 512 B on top of what was asked for, for each tensor.
    CHECK(planned.optimizer >= Bytes(run["optimizer_bytes"].get<std::int64_t>()));
    CHECK(planned.optimizer <= Bytes(run["optimizer_bytes"].get<std::int64_t>()) + 512_KiB);
    exact += planned.resident == Bytes(run["resident_bytes"].get<std::int64_t>());
    ++runs;
    // Ranks that are said to be alike are so: their resident bytes in the golden file are equal.
    for (const json& other : document["runs"]) {
      if (other["case"] != name) continue;
      for (const planner::EqualRanks& kind : planned.ranks)
        if (kind.has(rank) && kind.has(other["rank"]))
          CHECK(other["optimizer_bytes"] == run["optimizer_bytes"]);
    }
  }
  MESSAGE(exact << " of " << runs << " ranks' resident bytes to the byte");
  CHECK(runs >= 48);
  CHECK(exact >= 35);
}

TEST_CASE("counts of ranks add up to the world, and every rank is of one kind") {
  for (const models::Stack stack :
       {models::Stack::pytorch, models::Stack::deepspeed, models::Stack::plimsoll})
    for (const int zero : {0, 1, 2, 3})
      for (const std::int64_t gpus : {1, 3, 8, 17}) {
        World world("gpt2", stack, zero, gpus);
        const reports::Plan plan = world.plan();
        CAPTURE(static_cast<int>(stack));
        CAPTURE(zero);
        CAPTURE(gpus);
        std::vector<int> seen(static_cast<std::size_t>(gpus));
        std::int64_t count = 0;
        for (const reports::RankKind& kind : plan.ranks) {
          count += kind.count;
          CHECK(kind.has(kind.rank));
          CHECK(reports::sum(kind.at_peak) == kind.peak);
          CHECK(kind.peak <= plan.peak);
          CHECK(kind.reserved <= plan.reserved);
          for (std::int64_t rank = 0; rank < gpus; ++rank)
            seen[static_cast<std::size_t>(rank)] += kind.has(rank);
        }
        CHECK(count == gpus);
        CHECK(std::ranges::all_of(seen, [](int times) { return times == 1; }));
        CHECK(plan.ranks.front().peak == plan.peak);
        CHECK(plan.ranks.front().has(plan.peak_place.rank));
        CHECK(plan.ranks.front().states.total() == plan.states.total());
      }
}

TEST_CASE("what all ranks have of the optimizer's states is the whole") {
  // gpt2's embedding has 50257 rows, its biases 768 and more: no number of ranks below divides all.
  for (const int zero : {1, 2, 3})
    for (const std::int64_t gpus : {3, 5, 7, 11, 17, 29}) {
      World whole("gpt2", models::Stack::pytorch, 0, 1);
      World world("gpt2", models::Stack::pytorch, zero, gpus);
      const reports::Plan one = whole.plan(), plan = world.plan();
      Bytes all;
      for (const reports::RankKind& kind : plan.ranks) all += kind.states.optimizer * kind.count;
      CAPTURE(zero);
      CAPTURE(gpus);
      // Every part is rounded up to 512 B: 148 parameters, two states, on each rank.
      CHECK(all >= one.states.optimizer - Bytes(512 * 148 * 2));
      CHECK(all <= one.states.optimizer + Bytes(512 * 148 * 2 * gpus));
    }
}

TEST_CASE("ZeroRedundancyOptimizer: one rank has the embedding, and the rest share the layers") {
  World world("llama-3.2-1b", models::Stack::pytorch, 1, 17);
  const reports::Plan plan = world.plan();
  // The table, 128256 x 2048, is the first that is given away, in two states of 4 bytes.
  CHECK(plan.peak_place.rank == 0);
  CHECK(plan.ranks.front().count == 1);
  CHECK(plan.states.optimizer == Bytes(128'256LL * 2048 * 8));
  CHECK(plan.ranks.size() > 1);
  for (std::size_t i = 1; i < plan.ranks.size(); ++i)
    CHECK(plan.ranks[i].states.optimizer * 2 < plan.states.optimizer);
}

TEST_CASE("no rank of DeepSpeed's ZeRO-1 and 2 peaks or reserves more than the plan says") {
  for (const int zero : {1, 2})
    for (const std::int64_t gpus : {5, 8, 12}) {
      World world("qwen2.5-0.5b", models::Stack::deepspeed, zero, gpus);
      world.question.strategy.data.deepspeed.reduce_bucket_size = 100'000'000;
      const reports::Plan plan = world.plan();
      CAPTURE(zero);
      CAPTURE(gpus);
      const planner::ModelParts parts = planner::model_parts(world.model, world.question.strategy);
      for (std::int64_t rank = 0; rank < gpus; ++rank) {
        CAPTURE(rank);
        planner::StackStep step;
        step.rank = rank;
        planner::write_step(world.question, parts, step);
        const planner::Timeline timeline = planner::unroll(step.program);
        const planner::Reserved own = planner::replay(step.program, timeline, {}, step.start);
        CHECK(own.allocated <= plan.peak);
        CHECK(own.reserved <= plan.reserved);
        const auto kind = std::ranges::find_if(
            plan.ranks, [&](const reports::RankKind& k) { return k.has(rank); });
        REQUIRE(kind != plan.ranks.end());
        CHECK(kind->peak == own.allocated);
        CHECK(kind->reserved == own.reserved);
        CHECK(kind->states.gradients == step.states.gradients);
      }
    }
}

TEST_CASE("a thousand ranks are a few kinds") {
  World world("llama-3.1-8b", models::Stack::deepspeed, 2, 1024);
  const reports::Plan plan = world.plan();
  CHECK(plan.ranks.size() > 1);
  CHECK(plan.ranks.size() < 40);
  std::int64_t count = 0;
  for (const reports::RankKind& kind : plan.ranks) count += kind.count;
  CHECK(count == 1024);
}

TEST_CASE("hybrid groups repeat their ranks") {
  const auto ranks =
      planner::equal_ranks(6, 3, [](std::int64_t rank) { return std::vector{rank / 2}; });
  REQUIRE(ranks.size() == 2);
  CHECK(ranks[0].spans == std::vector<reports::RankSpan>{{0, 1}, {3, 4}});
  CHECK(ranks[1].spans == std::vector<reports::RankSpan>{{2, 2}, {5, 5}});
  CHECK(ranks[0].count() == 4);
}

// A partition of 396 million elements cuts 126 layers of 3.2 billion: nearly every rank is a kind.
TEST_CASE("of many kinds of ranks some are planned, and they still stand for every rank") {
  const models::ModelSpec model = models::catalog_model("llama-3.1-405b");
  planner::Question question;
  question.model = &model;
  question.strategy.stack = models::Stack::deepspeed;
  question.strategy.gpus = 1024;
  question.strategy.data.zero = 2;
  question.cluster.gpu = models::find_gpu("h100");
  question.remedies = false;
  question.detail = planner::Detail::none;
  const reports::Plan plan = planner::plan(question);
  CHECK(plan.ranks.size() <= planner::kMostKinds);
  std::int64_t all = 0;
  for (const reports::RankKind& kind : plan.ranks) {
    CHECK(kind.peak <= plan.peak);
    all += kind.count;
  }
  CHECK(all == 1024);
  const planner::ModelParts parts = planner::model_parts(model, question.strategy);
  for (std::int64_t rank = 0; rank < 1024; ++rank) {
    planner::StackStep step;
    step.rank = rank;
    step.program_only = true;
    planner::write_step(question, parts, step);
    CHECK(planner::PeakFinder().find(step.program).bytes <= plan.peak);
  }
  CHECK(std::ranges::any_of(plan.assumptions, [](const reports::Assumption& a) {
    return a.what == "kinds of ranks that are planned";
  }));
}

// ZeroRedundancyOptimizer gives whole parameters away: one of four ranks has the embedding's
// states.
TEST_CASE("a program alone is that of the rank that is asked for") {
  const models::ModelSpec model = models::catalog_model("gpt2");
  planner::Question question;
  question.model = &model;
  question.strategy.gpus = 4;
  question.strategy.data.zero = 1;
  question.batch = {.seq_len = 128};
  question.cluster.gpu = models::find_gpu("h100");
  const planner::ModelParts parts = planner::model_parts(model, question.strategy);
  std::set<std::int64_t> peaks;
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const auto peak = [&](bool program_only) {
      planner::StackStep step;
      step.rank = rank;
      step.program_only = program_only;
      planner::write_step(question, parts, step);
      CHECK(step.rank == rank);
      planner::PeakFinder finder;
      return finder.find(step.program).bytes;
    };
    const Bytes quick = peak(true), whole = peak(false);
    // Tensors that always live together are one there: nothing between them is rounded up.
    CHECK(quick <= whole);
    CHECK(whole - quick < 1_MiB);
    peaks.insert(quick.value() >> 20);
  }
  CHECK(peaks.size() > 1);
}
