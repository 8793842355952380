// The planned step of stack deepspeed against the real engine, phase by phase.
//
// tests/golden/deepspeed_runs.json: deepspeed.initialize() and three steps on a CUDA runtime that
// computes nothing (tools/oracle/deepspeed_measure.py), so buckets, partitions and hooks are
// DeepSpeed's and the allocator is PyTorch's. Recorded are requested bytes of the third step.
// deepspeed_lion.json: the same with FusedLion.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/gpu_catalog.h"
#include "models/overheads.h"
#include "models/stack_versions.h"
#include "planner/memory/reserved.h"
#include "planner/program/peak.h"
#include "planner/program/timeline.h"
#include "planner/stacks/deepspeed/layout.h"
#include "planner/stacks/deepspeed/stack.h"
#include "tests/planner/deepspeed_run.h"

using namespace plimsoll;
using nlohmann::json;
using tests::phases_of;
using tests::plan_run;
using tests::Planned;

TEST_CASE("planned DeepSpeed steps are what the real engine allocates") {
  const json document = json::parse(std::ifstream(PLIMSOLL_GOLDEN "/deepspeed_runs.json"));
  const json lion = json::parse(std::ifstream(PLIMSOLL_GOLDEN "/deepspeed_lion.json"));
  json runs = document["runs"];
  runs.insert(runs.end(), lion["runs"].begin(), lion["runs"].end());
  double worst = 0;
  int exact = 0;
  for (const json& run : runs) {
    const std::string name = run["case"];
    CAPTURE(name);
    const Planned planned = plan_run(run);
    const double peak = planned.peak.bytes.real() / run["peak_bytes"].get<double>() - 1;
    const double resident = planned.peak.resident.real() / run["resident_bytes"].get<double>() - 1;
    CHECK(std::abs(resident) <= 0.0001);
    const bool stage3 = run["workload"]["strategy"]["zero"] == 3;
    const double most = stage3 ? 0.013 : 0.006;  // ZeRO-3: the prefetch is planned as one level
    CHECK(std::abs(peak) <= most);
    // What another stream has read is counted until the next allocation after its release: at the
    // end of a backward, and at the beginning of the step.
    const bool parks =
        run["workload"]["strategy"]["zero"] == 3 ||
        run["workload"]["stack"].value("deepspeed", json::object()).contains("overlap_comm");
    double backward_end = 0;
    for (const auto& [phase, figures] : phases_of(run, planned)) {
      CAPTURE(phase);
      const bool parked = parks && phase != "forward";
      if (!(parked && phase == "step" && figures.peak == backward_end))
        CHECK(std::abs(figures.planned_peak / figures.peak - 1) <= most);
      // ZeRO-3's prefetches are planned as one level from the loss on, not module by module.
      if (!(parked && phase == "backward") && !(stage3 && phase == "forward"))
        CHECK(std::abs(figures.planned_end / figures.end - 1) <= 0.0001);
      if (phase == "backward") backward_end = figures.end;
    }
    exact += std::abs(planned.peak.bytes.value() - run["peak_bytes"].get<std::int64_t>()) <= 64;
    worst = std::max(worst, std::abs(peak));
  }
  MESSAGE(exact << " of " << runs.size()
                << " runs of the engine planned to 64 bytes; largest error of the peak "
                << 100 * worst << " %");
  CHECK(exact >= 55);
  CHECK(document["runs"].size() >= 30);
}

// Configurations that were drawn, not chosen (tools/oracle/deepspeed_draw.json). Two of them missed
// and showed what ZeRO-1's reductions hold; the rest stood as planned.
TEST_CASE("drawn DeepSpeed configurations peak where they were planned to, on any rank") {
  const json document = json::parse(std::ifstream(PLIMSOLL_GOLDEN "/deepspeed_draw.json"));
  int exact = 0;
  for (const json& run : document["runs"]) {
    const std::string name = run["case"];
    CAPTURE(name);
    const Planned planned = plan_run(run);
    const double peak = planned.peak.bytes.real() / run["peak_bytes"].get<double>() - 1;
    const double resident = planned.peak.resident.real() / run["resident_bytes"].get<double>() - 1;
    // 1 MiB more of cublasLt where biases are recomputed.
    CHECK(std::abs(resident) <= 0.0015);
    // ZeRO-3's gathers are planned as levels; these drew models whose buckets are full while less
    // than a level is gathered.
    const bool high = name == "zero3-04" || name == "zero3-09" || name == "zero3-14";
    CHECK((peak <= (run["workload"]["strategy"]["zero"] == 3 ? 0.018 : 0.001)) != high);
    CHECK(peak <= 0.09);
    CHECK(peak >= (run["workload"]["strategy"]["zero"] == 3 ? -0.018 : -0.001));
    exact += std::abs(planned.peak.bytes.value() - run["peak_bytes"].get<std::int64_t>()) <= 64;
  }
  MESSAGE(exact << " of " << document["runs"].size() << " drawn runs planned to 64 bytes");
  CHECK(document["runs"].size() >= 52);
  CHECK(exact >= 35);
}

// Checkpoints around the first layers alone, or around every Nth; some of them reentrant.
TEST_CASE("drawn DeepSpeed runs with some layers in checkpoints peak where they were planned to") {
  for (const auto& [file, count] : {std::pair("block", 14), std::pair("nth", 8)}) {
    const json document = json::parse(
        std::ifstream(std::string(PLIMSOLL_GOLDEN "/deepspeed_") + file + "_draw.json"));
    for (const json& run : document["runs"]) {
      CAPTURE(run["case"].get<std::string>());
      const Planned planned = plan_run(run);
      const double peak = planned.peak.bytes.real() / run["peak_bytes"].get<double>() - 1;
      const double resident =
          planned.peak.resident.real() / run["resident_bytes"].get<double>() - 1;
      CHECK(std::abs(resident) <= 0.0015);
      CHECK(std::abs(peak) <= (run["case"] == "block-11-zero2" ? 0.00012 : 2e-7));
    }
    CHECK(std::ssize(document["runs"]) == count);
  }
}

// What `recommend` leaves room for is the worst but one that was seen here.
TEST_CASE(
    "reserved bytes of DeepSpeed are at most what overheads.json says above the planned, but for "
    "one") {
  json runs = json::array();
  for (const char* file : {"/deepspeed_runs.json", "/deepspeed_draw.json", "/deepspeed_liger.json",
                           "/deepspeed_liger_draw.json"}) {
    const json document = json::parse(std::ifstream(PLIMSOLL_GOLDEN + std::string(file)));
    runs.insert(runs.end(), document["runs"].begin(), document["runs"].end());
  }
  std::vector<double> more;  // than planned
  for (const json& run : runs) {
    const Planned planned = plan_run(run);
    const Bytes reserved =
        planner::replay(planned.program, planned.timeline, {}, planned.start).reserved;
    const double error = reserved.real() / run["reserved_bytes"].get<double>() - 1;
    CAPTURE(run["case"].get<std::string>());
    const std::string name = run["case"];
    const bool stage3 = run["workload"]["strategy"]["zero"] == 3;
    const bool drawn = name.starts_with("draw"), liger = name.starts_with("liger");
    // Before the start was replayed, ZeRO-2 with recomputation was planned 36 % too low.
    // As one block, what ZeRO-3 gathers was planned 55 % too high (draw-00) and 20 % (wide-full).
    // Since its own requests are replayed, the stream that gathers is right in zero3-04.
    if (name == "draw-00" || name == "zero3-04")
      CHECK(error <= (name == "draw-00" ? 0.21 : 0.16));
    else
      CHECK(error <= (stage3 ? 0.13 : 0.21));
    const double least = name == "liger-draw-21"        ? -0.145
                         : name == "z1-overlap-large-5" ? -0.105  // of 152 MB
                         : liger || (drawn && !stage3)  ? -0.13
                                                        : -0.1;
    CHECK(error >= least);
    MESSAGE(name << ": reserved " << 100 * error << " %");
    more.push_back(run["reserved_bytes"].get<double>() / reserved.real() - 1);
  }
  std::ranges::sort(more, std::greater());
  const models::Gpu h100 = models::find_gpu("h100");
  const auto overheads = models::overheads_of("deepspeed", h100, models::text_of(models::kTorch));
  CHECK(models::find_overhead(overheads, "reserved_underestimate")->range->high ==
        std::ceil(1000 * more[1]));
  CHECK(more.size() == 198);
}

TEST_CASE("partitions, paddings and sub-groups are those of the engine's own objects") {
  const json document = json::parse(std::ifstream(PLIMSOLL_GOLDEN "/deepspeed_runs.json"));
  int stages12 = 0, stages3 = 0;
  for (const json& run : document["runs"]) {
    const std::string name = run["case"];
    CAPTURE(name);
    const models::ModelSpec model = tests::oracle_model_of(run["workload"]["model"]);
    const models::Strategy strategy = tests::deepspeed_strategy_of(run["workload"]);
    const planner::ModelParts parts = planner::model_parts(model, strategy);
    const planner::deepspeed::Engine engine = planner::deepspeed::engine_of(strategy);
    const planner::deepspeed::FlatLayout layout(parts, engine);
    const json& seen = run["engine"];
    if (seen.contains("partition")) {
      const auto share = layout.share(run["rank"].get<std::int64_t>());
      CHECK(layout.aligned() == seen["aligned"][0]);
      CHECK(layout.partition() == seen["partition"][0]);
      CHECK(share.whole == seen["whole_in_partition"][0]);
      const std::int64_t padding =
          share.pieces - seen["pieces_in_partition"][0].get<std::int64_t>();
      CHECK((padding == 0 || padding == 1));
      ++stages12;
    }
    if (seen.contains("sub_groups")) {
      CHECK(layout.shards().trained == seen["grad_buffer"]);
      CHECK(layout.shards().trained == seen["lp_buffer"]);  // frozen ones lie apart
      CHECK(layout.persistent() == seen["persistent"]);
      std::int64_t largest = 0;
      for (const json& group : seen["sub_groups"])
        largest = std::max(largest, group.get<std::int64_t>());
      CHECK(layout.shards().sub_group == largest);
      ++stages3;
    }
  }
  CHECK(stages12 >= 25);
  CHECK(stages3 >= 18);
}

TEST_CASE("what DeepSpeed does in ways that are not planned is refused by name") {
  const auto refusal = [](auto change) -> std::string {
    models::Strategy s;
    s.stack = models::Stack::deepspeed;
    s.gpus = 8;
    s.data.zero = 2;
    change(s);
    try {
      planner::deepspeed::engine_of(s);
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  const auto names = [](const std::string& message, std::string_view part) {
    return message.find(part) != std::string::npos;
  };
  CHECK(refusal([](models::Strategy&) {}).empty());
  CHECK(names(refusal([](auto& s) { s.data.shard_group = 4; }), "--shard-group"));
  CHECK(names(refusal([](auto& s) { s.precision = models::Precision::fp16; }), "--precision fp16"));
  CHECK(names(refusal([](auto& s) { s.data.deepspeed.contiguous_gradients = false; }),
              "contiguous_gradients"));
  CHECK(names(refusal([](auto& s) { s.data.deepspeed.reduce_scatter = false; }), "reduce_scatter"));
  CHECK(names(refusal([](auto& s) {
                s.data.zero = 1;
                s.grad_dtype = DType::fp32;
              }),
              "BF16_Optimizer"));
  CHECK(names(refusal([](auto& s) { s.master_weights = false; }), "--master-weights"));
}
