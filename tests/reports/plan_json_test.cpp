#include "reports/plan_json.h"

#include <doctest/doctest.h>

#include "reports/fingerprint.h"
#include "reports/workload_json.h"
#include "tests/reports/made_up_plan.h"

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {
std::string document(const Plan& plan) {
  std::string text;
  JsonWriter json(text, JsonWriter::Style::compact);
  write_plan(json, plan, {.version = "1.2.3", .commit = "abc"});
  return text;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}
}  // namespace

TEST_CASE("the keys of a plan stand in the order of the contract") {
  const std::string text = document(made_up_plan());
  const char* keys[] = {"schema",         "tool",           "workload",
                        "environment",    "model",          "fits",
                        "verdict",        "capacity_bytes", "usable_bytes",
                        "device_bytes",   "headroom_bytes", "peak_bytes",
                        "resident_bytes", "reserved_bytes", "range",
                        "high_end",       "flushing",       "peak",
                        "states",         "at_peak",        "outside_allocator",
                        "host",           "ranks",          "flops",
                        "communication",  "time",           "timeline",
                        "tensors",        "advice",         "remedies",
                        "assumptions"};
  std::size_t at = 0;
  for (const char* key : keys) {
    const std::size_t next = text.find("\"" + std::string(key) + "\":", at);
    CHECK_MESSAGE(next != std::string::npos, key);
    at = next == std::string::npos ? at : next;
  }
}

TEST_CASE("bytes are integers and what is not known is null") {
  const std::string text = document(made_up_plan());
  CHECK(has(text, R"("peak_bytes":42949672960,)"));  // 40 * 2^30
  CHECK(has(text, R"("range":null,)"));
  CHECK(has(text, R"("step_seconds":2.0,)"));
  CHECK(has(text, R"("limited_by":"links between nodes")"));
  Plan unknown = made_up_plan();
  unknown.time = {};
  CHECK(has(document(unknown), R"("step_seconds":null,)"));
  CHECK(has(document(unknown), R"("limited_by":null)"));
  CHECK(has(text, R"("verdict":"fits",)"));
}

TEST_CASE(
    "a plan of states alone claims no peak, and a verdict only where they alone are too much") {
  Plan plan = made_up_plan();
  plan.states_only = true;
  std::string text = document(plan);
  CHECK(has(text, R"("fits":null,"verdict":null,)"));
  CHECK(has(text, R"("peak_bytes":null,)"));
  CHECK(has(text, R"("at_peak":null,)"));
  CHECK(has(text, R"("gradients_bytes":4294967296,)"));
  plan.verdict = Verdict::does_not_fit;
  plan.fits = false;
  text = document(plan);
  CHECK(has(text, R"("fits":false,"verdict":"does not fit",)"));
}

TEST_CASE("the deterministic mode is another workload, and the word is absent without it") {
  Plan plan = made_up_plan();
  const std::string text = canonical_workload(plan);
  CHECK(!has(text, "deterministic"));
  plan.strategy.deterministic = true;
  CHECK(has(canonical_workload(plan), R"("wrap":null},"deterministic":true,"ep":1,)"));
}

TEST_CASE("how ranks exchange data is part of the workload where it is not the device's own way") {
  Plan plan = made_up_plan();
  plan.strategy.stack = models::Stack::plimsoll;
  plan.strategy.gpus = 4;
  const std::string usual = canonical_workload(plan);
  CHECK(has(usual, R"("stack":{"device":"cuda","name":"plimsoll"})"));
  plan.strategy.exchange = models::Exchange::nccl;
  CHECK(canonical_workload(plan) == usual);
  plan.strategy.exchange = models::Exchange::threads;
  CHECK(has(canonical_workload(plan),
            R"("stack":{"device":"cuda","exchange":"threads","name":"plimsoll"})"));
  plan.strategy.gpus = 1;  // nothing is exchanged
  CHECK(!has(canonical_workload(plan), "exchange"));
}

TEST_CASE("the fingerprint follows the question and not the machine, the name or the answer") {
  const Plan plan = made_up_plan();
  const std::string same = fingerprint(canonical_workload(plan));
  Plan other = plan;
  other.model_name = "another/name";
  other.gpu.reset();
  other.cluster.reserve = 1_GiB;
  other.peak = 1_GiB;
  CHECK(fingerprint(canonical_workload(other)) == same);
  other = plan;
  other.batch.seq_len = 8193;
  CHECK(fingerprint(canonical_workload(other)) != same);
  other = plan;
  other.strategy.gpus = 16;
  CHECK(fingerprint(canonical_workload(other)) != same);
  other = plan;
  other.config_json = R"({"hidden_size":16,"model_type":"llama"})";
  CHECK(fingerprint(canonical_workload(other)) != same);
}

TEST_CASE("an option that spells out its default is the same workload") {
  const Plan plan = made_up_plan();
  Plan other = plan;
  other.strategy.param_dtype = DType::fp32;  // what bf16-mixed loads
  other.strategy.data.fsdp_upcast = true;
  other.strategy.optimizer_impl = models::OptimizerImpl::foreach;
  CHECK(canonical_workload(other) == canonical_workload(plan));
}
