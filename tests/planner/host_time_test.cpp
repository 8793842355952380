// What the host is planned to need, against steps of the real packages on a CUDA runtime that
// computes nothing (tools/oracle/host_times.py).
#include "planner/time/host_time.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "models/gpu_catalog.h"
#include "planner/time/step_time.h"
#include "tests/near.h"
#include "tests/planner/oracle_deepspeed.h"

using namespace plimsoll;
using nlohmann::json;

namespace {

// Of so many layers, which are so narrow that the GPU always waits.
double seconds(const json& row, const models::Strategy& strategy, std::int64_t layers) {
  json config = row["workload"]["model"];
  if (config.contains("config")) config = json(config["config"]);
  config[config.contains("n_layer") ? "n_layer" : "num_hidden_layers"] = layers;
  const models::ModelSpec model = tests::oracle_model_of(config);
  models::ClusterSpec cluster;
  cluster.gpu = models::find_gpu("h200");
  const planner::TimeModel time(planner::model_parts(model, strategy), cluster);
  const planner::StepTime step = time(strategy, {.seq_len = 128});
  CHECK(step.limit == planner::Limit::launches);
  return step.compute;
}

double planned_microseconds(const json& row) {
  const models::Strategy strategy = row["stack"] == "deepspeed"
                                        ? tests::deepspeed_strategy_of(row["workload"])
                                        : tests::strategy_of(row["workload"]);
  return (seconds(row, strategy, 24) - seconds(row, strategy, 8)) / 16 * 1e6;
}

// How far off each case is, as a logarithm, sorted. Figures are those of a processor that issues a
// small kernel in 2 us.
std::vector<double> errors(const char* file) {
  const json document = json::parse(std::ifstream(std::string(PLIMSOLL_GOLDEN "/") + file));
  std::vector<double> off;
  for (const json& row : document["cases"]) {
    const std::string name = row["name"];
    CAPTURE(name);
    const json& layer = row["layer_microseconds"];
    const double speed = 2 / row["reference_microseconds"].get<double>();
    const double measured =
        speed * (layer["forward"].get<double>() + layer["backward"].get<double>());
    const double factor = planned_microseconds(row) / measured;
    CAPTURE(factor);
    CHECK(std::abs(std::log(factor)) < std::log(1.4));
    off.push_back(std::abs(std::log(factor)));
  }
  std::ranges::sort(off);
  return off;
}

}  // namespace

TEST_CASE("the host's time for a layer is planned within 40 %, for half of the steps a tenth") {
  const std::vector<double> off = errors("host_times.json");
  REQUIRE(off.size() == 30);
  CHECK(off[15] < std::log(1.1));
  CHECK(off[24] < std::log(1.25));
}

TEST_CASE("so it is for seven steps that were asked when the figures had been settled") {
  const std::vector<double> off = errors("host_times_fresh.json");
  REQUIRE(off.size() == 7);
  CHECK(off[3] < std::log(1.1));
  CHECK(off[5] < std::log(1.2));
}

TEST_CASE("a host issues a kernel in 9 us from Python, in 3 us from compiled code") {
  models::Strategy s;
  CHECK(planner::launch_seconds(s).value == 9e-6);
  s.kernels = models::Kernels::liger;
  CHECK(planner::launch_seconds(s).value == 24e-6);
  CHECK(planner::launch_seconds(s).basis == std::string("calibrated"));
  s.kernels = models::Kernels::fused;
  CHECK(planner::launch_seconds(s).value == 24e-6);
  CHECK(planner::launch_seconds(s).basis == std::string("assumed"));
  s.compile = models::Compile::block;
  CHECK(planner::launch_seconds(s).value == 3e-6);
  s = {};
  s.stack = models::Stack::plimsoll;
  CHECK(planner::launch_seconds(s).value == 3e-6);
  CHECK(planner::execution_of(s).launch == 3e-6);
}

// No units, no hooks; our own runtime and compiled layers have no Python of their own.
TEST_CASE("messages, hooks and checkpoints cost the host where Python is around them") {
  models::Strategy s;
  s.recompute = {models::RecomputeKind::full, 1};
  CHECK(planner::message_seconds(s).value == 0);
  CHECK(planner::hook_seconds(s).value == 0);
  CHECK(planner::adapter_seconds(s).value == 0);
  CHECK(planner::checkpoint_seconds(s).value == 1.7e-3);
  s.use_reentrant = true;
  CHECK(planner::checkpoint_seconds(s).value == 0.6e-3);
  s.lora = models::Lora{};
  CHECK(planner::adapter_seconds(s).value == 0.15e-3);
  s.gpus = 8;
  s.data.zero = 1;
  CHECK(planner::message_seconds(s).value == 0);
  s.data.zero = 2;
  CHECK(planner::message_seconds(s).value == 0.85e-3);
  s.data.fsdp_version = 1;
  CHECK(planner::message_seconds(s).value == 0.55e-3);
  s.tp = 2;
  CHECK(planner::message_seconds(s).value == 0);
  s.tp = 1;
  s.stack = models::Stack::deepspeed;
  CHECK(planner::hook_seconds(s).value == 0);
  s.data.zero = 3;
  CHECK(planner::hook_seconds(s).value == 0.45e-3);
  CHECK(planner::message_seconds(s).value == 0);
  s.compile = models::Compile::block;
  CHECK(planner::checkpoint_seconds(s).value == 0);
  CHECK(planner::adapter_seconds(s).value == 0);
  s.stack = models::Stack::plimsoll;
  s.compile = models::Compile::no;
  CHECK(planner::checkpoint_seconds(s).value == 0);
  CHECK(planner::hook_seconds(s).value == 0);
  CHECK(planner::message_seconds(s).value == 0);
}

// A Llama layer has seven linears and two norms. Of a checkpoint a third is the forward's; of the
// hooks, 9 + 2 · 7 a pass, of which a checkpoint has three.
TEST_CASE("a layer's checkpoint, adapters and hooks stand in its forward and its backward") {
  models::Strategy s;
  s.stack = models::Stack::deepspeed;
  s.gpus = 8;
  s.data.zero = 3;
  s.lora = models::Lora{.rank = 8};
  s.lora->targets = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  s.recompute = {models::RecomputeKind::full, 1};
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  const planner::ModelParts parts = planner::model_parts(model, s);
  const planner::PartCost cost = planner::layer_host(parts.runs.front(), 0, s).python;
  const double pass = 7 * 0.15e-3 / 2 + (9 + 14) * 0.45e-3;
  CHECK(tests::near(cost.forward.launches, pass + 1.7e-3 / 3, 1e-12));
  CHECK(tests::near(cost.backward.launches, 2 * pass + 1.7e-3 * 2 / 3, 1e-12));
  CHECK(cost.forward.busy() == 0);
  s.recompute = {};
  const planner::PartCost once = planner::layer_host(parts.runs.front(), 0, s).python;
  CHECK(tests::near(once.forward.launches, pass, 1e-12));
  CHECK(tests::near(once.backward.launches, pass, 1e-12));
  // Four layers in a checkpoint share its cost, and each runs again.
  s.recompute = {models::RecomputeKind::every, 4};
  const planner::PartCost shared = planner::layer_host(parts.runs.front(), 0, s).python;
  CHECK(tests::near(shared.backward.launches, 2 * pass + 1.7e-3 * 2 / 3 / 4, 1e-12));
}

// Llama-3.2-1B: 2048 wide, keys and values 512, an MLP of 8192: the attention's linears have
// 10,485,760 of a layer's 60,817,408 weights.
TEST_CASE(
    "FSDP1's host waits two units behind the GPU: of adapters in turn, the linears alone hide it") {
  models::Strategy s;
  s.gpus = 8;
  s.data.zero = 3;
  s.data.fsdp_version = 1;
  s.lora = models::Lora{.rank = 8};
  s.lora->targets = {"q_proj", "k_proj", "v_proj", "o_proj"};
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  const auto share = [&] {
    const planner::ModelParts parts = planner::model_parts(model, s);
    return planner::layer_host(parts.runs.front(), 0, s).between_units;
  };
  CHECK(tests::near(share(), 10485760.0 / 60817408, 1e-12));
  models::ClusterSpec cluster;
  cluster.gpu = models::find_gpu("a100-sxm-80gb");
  const auto time = [&] {
    return planner::TimeModel(planner::model_parts(model, s), cluster)(
        s, {.seq_len = 4096, .micro_batch = 2});
  };
  const planner::StepTime in_turn = time();
  CHECK(in_turn.limit != planner::Limit::launches);
  CHECK(in_turn.compute > 1.2 * in_turn.busy);
  s.data.zero = 2;  // nothing is given back between forward and backward
  CHECK(share() == 1);
  CHECK(time().compute < 1.1 * time().busy);
  s.data.zero = 3;
  s.data.fsdp_version = 2;
  CHECK(share() == 1);
  CHECK(time().compute < 1.1 * time().busy);
  s.data.fsdp_version = 1;
  s.lora.reset();
  CHECK(share() == 1);
}
