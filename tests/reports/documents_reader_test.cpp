// Plans and measurements read back from JSON, and what is refused.
#include <doctest/doctest.h>

#include "reports/comparison.h"
#include "reports/fingerprint.h"
#include "reports/plan_json.h"
#include "reports/workload_json.h"
#include "tests/reports/made_up_plan.h"

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {

Plan detailed_plan() {
  Plan plan = made_up_plan();
  plan.tensors = {
      {.name = "w", .category = "parameters", .bytes = 7_B, .born_op = -1, .dies_op = 1},
      {.name = "x", .category = "logits", .bytes = 5_B, .born_op = 0, .dies_op = 0}};
  return plan;
}

// Made up as it is, its parts do not all make up their sums.
std::string document(Plan plan) {
  plan.cluster.reserve = 1_GiB;  // 79 GiB are there, 78 usable
  plan.time.mfu = plan.time.hfu = std::nullopt;
  plan.fingerprint = fingerprint(canonical_workload(plan));
  std::string text;
  JsonWriter json(text, JsonWriter::Style::compact);
  write_plan(json, plan, {.version = "1.2.3", .commit = "abc"});
  return text;
}

// `ranks`: the elements of its list.
std::string measured(const std::string& ranks) {
  const std::string batch = R"("batch":{"grad_accum":1,"micro_batch":1,"seq_len":8})";
  const std::string rest = R"("stack":{"name":"plimsoll"},"strategy":{"world_size":2})";
  const std::string canonical = "{" + batch + R"(,"model":{"config":null},)" + rest + "}";
  return R"({"schema": "plimsoll.measurement/1", "tool": {"name": "a test", "version": "1"},
             "kind": "cpu", "measured_at": "2026-01-31T12:00:00Z", "environment": null,
             "outcome": "completed", "error": null, "steps": [], "time": null,
             "workload": {"fingerprint": ")" +
         fingerprint(canonical) + R"(", "model": {"name": "m", "config": null}, )" + batch + "," +
         rest + R"(}, "ranks": [)" + ranks + "]}";
}

std::string empty_rank(const char* number) {
  return std::string(R"({"rank": )") + number +
         R"(, "peak_bytes": null, "resident_bytes": null, "reserved_bytes": null,
            "device_bytes": null, "states": null, "at_peak": null})";
}

template <class Read>
std::string refusal(Read read, const std::string& text) {
  try {
    (void)read(text, "file.json");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return error.message();
  }
  return "";
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a prediction read from its document is the one made from the plan") {
  const Plan plan = detailed_plan();
  const Prediction made = prediction_of(plan);
  const Prediction read = read_prediction(document(plan), "plan.json");
  CHECK(read.source == "plan.json");
  CHECK(read.fingerprint == fingerprint(canonical_workload(plan)));
  CHECK(read.model == made.model);
  CHECK(read.stack == made.stack);
  CHECK(read.ranks == 8);
  CHECK(read.fits == made.fits);
  CHECK(read.resident == 16_GiB);
  CHECK(read.reserved == 42_GiB);
  CHECK(read.device == made.device);
  CHECK(read.overhead == 1_GiB);  // 512 + 256 + 256 MiB
  CHECK(read.step_seconds == 2.0);
  REQUIRE(read.kinds.size() == 1);
  CHECK(read.kinds[0].count == 8);
  CHECK(read.kinds[0].peak == 40_GiB);
  CHECK(read.kinds[0].at_peak == made.kinds[0].at_peak);
  CHECK(read.kinds[0].states.optimizer == 8_GiB);
  REQUIRE(read.step);
  CHECK(*read.step == *made.step);
  CHECK(read.step->tensors[0] == TensorSpan{"w", "parameters", 7_B, -1, 1});
  CHECK(read.step->ops[0] == OpBoundary{"layers.0", "forward", 17_GiB, 18_GiB});
}

TEST_CASE("abridged tables are no detail, and states alone predict no rank") {
  Plan plan = made_up_plan();
  CHECK(!prediction_of(plan).step);
  CHECK(!read_prediction(document(plan), "p").step);
  plan.states_only = true;
  CHECK(prediction_of(plan).kinds.empty());
  CHECK(read_prediction(document(plan), "p").kinds.empty());
}

TEST_CASE("a rank is of the kind that begins last before it") {
  Prediction p;
  p.ranks = 8;
  p.kinds = {{.rank = 0, .count = 4}, {.rank = 4, .count = 4}};
  CHECK(p.kind_of(3) == &p.kinds[0]);
  CHECK(p.kind_of(4) == &p.kinds[1]);
  CHECK(p.kind_of(8) == nullptr);
  CHECK(p.kind_of(-1) == nullptr);
}

TEST_CASE("a measurement is read with its ledgers, and what is null is not known") {
  const Measurement m = read_measurement(
      measured(R"({"rank": 1, "peak_bytes": 12, "resident_bytes": 7, "reserved_bytes": 256,
          "initial_reserved_bytes": 128, "device_bytes": null, "states": null,
          "at_peak": {"parameters_bytes": 7, "gradients_bytes": 0, "optimizer_bytes": 0,
            "activations_bytes": 0, "logits_bytes": 5, "temporaries_bytes": 0,
            "communication_bytes": 0, "workspace_bytes": 0},
          "peak": {"phase": "forward", "where": "a", "requested_peak_bytes": 12},
          "ledgers": [{"steps": [1, 3], "skipped": true,
            "timeline": [{"op": "a", "phase": "forward", "allocated_bytes": 7,
                          "high_water_bytes": 12}],
            "tensors": [{"name": "w", "category": "parameters", "bytes": 7, "born_op": -1,
                         "dies_op": 1}]}]})"),
      "m.json");
  CHECK(m.source == "m.json");
  CHECK(m.world == 2);
  CHECK(m.stack == "plimsoll");
  REQUIRE(m.ranks.size() == 1);
  const MeasuredRank& r = m.ranks[0];
  CHECK(r.rank == 1);
  CHECK(r.peak == 12_B);
  CHECK(r.resident == 7_B);
  CHECK(r.reserved == 256_B);
  CHECK(r.peak_phase == "forward");
  CHECK(!r.device);
  CHECK(!r.states);
  CHECK(r.initial_reserved == 128_B);
  CHECK((*r.at_peak)[4] == 5_B);
  CHECK(r.peak_where == "a");
  REQUIRE(r.ledgers.size() == 1);
  CHECK(r.ledgers[0].steps == std::vector<std::int64_t>{1, 3});
  CHECK(r.ledgers[0].skipped);
  CHECK(r.ledgers[0].ledger.tensors[0] == TensorSpan{"w", "parameters", 7_B, -1, 1});
  CHECK(r.ledgers[0].ledger.ops[0] == OpBoundary{"a", "forward", 7_B, 12_B});
}

TEST_CASE("a run that failed is read with its error, its driver and what it held") {
  std::string text = measured(R"({"rank": 0, "peak_bytes": 6, "resident_bytes": 3,
      "reserved_bytes": 9, "device_bytes": 11, "at_peak": null,
      "states": {"parameters_bytes": 1, "gradients_bytes": 2, "optimizer_bytes": 3}})");
  const auto put = [&](const std::string& key, const std::string& value) {
    const std::string before = "\"" + key + "\": ";
    const std::size_t at = text.find(before) + before.size();
    text.replace(at, text.find(",", at) - at, value);
  };
  put("kind", R"("gpu")");
  put("environment",
      R"({"device": {"name": "H200", "capacity_bytes": null, "driver": "570.1"}, "versions": {},
          "variables": {}})");
  put("outcome", R"("failed")");
  put("error",
      R"({"kind": "device", "message": "an event", "step": null, "phase": null, "tried_bytes": null, "live": null})");
  put("time",
      R"({"step_seconds": 0.25, "mad_seconds": null, "timed_steps": 0, "peak_flops": null, "communication": "none", "tokens_per_second": null, "model_flops_per_step": null, "mfu": null, "mfu_full_attention": null})");
  const Measurement m = read_measurement(text, "m.json");
  CHECK(m.kind == "gpu");
  CHECK(m.measured_at == "2026-01-31T12:00:00Z");
  CHECK(m.model == "m");
  CHECK(m.fingerprint.size() > 8);
  CHECK(m.workload.find(m.fingerprint) != std::string::npos);
  CHECK(m.outcome == "failed");
  CHECK(m.environment.driver == "570.1");
  REQUIRE(m.error);
  CHECK(m.error->kind == "device");
  CHECK(m.error->message == "an event");
  CHECK(m.step_seconds == 0.25);
  CHECK(m.ranks[0].device == 11_B);
  REQUIRE(m.ranks[0].states);
  CHECK(m.ranks[0].states->parameters == 1_B);
  CHECK(m.ranks[0].states->gradients == 2_B);
  CHECK(m.ranks[0].states->optimizer == 3_B);
}

TEST_CASE("documents that are cut short, of another kind or with impossible values are refused") {
  const std::string plan = document(detailed_plan());
  CHECK(has(refusal(read_prediction, plan.substr(0, plan.size() / 2)), "file.json: not JSON"));
  CHECK(has(refusal(read_measurement, plan),
            "file.json: a document of schema plimsoll.plan/1, where plimsoll.measurement/1"));
  CHECK(has(refusal(read_prediction, "{}"), "a document without a schema"));
  CHECK(has(refusal(read_prediction, "[]"), "file.json"));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = plan;
    REQUIRE(text.find(from) != std::string::npos);
    text.replace(text.find(from), from.size(), to);
    return refusal(read_prediction, text);
  };
  CHECK(has(changed("\"bytes\":7", "\"bytes\":NaN"), "not JSON"));
  CHECK(has(changed("\"bytes\":7", "\"bytes\":-7"), "bytes"));
  CHECK(has(changed("\"bytes\":7", "\"bytes\":7.5"), "bytes"));
  CHECK(has(changed("\"bytes\":7", "\"bytes\":1e400"), "file.json"));
  CHECK(has(changed("\"bytes\":7", "\"bytes\":null"), "bytes"));
  CHECK(has(changed("\"born_op\":0", "\"born_op\":1"), "born_op"));
  CHECK(has(changed("\"born_op\":0", "\"born_op\":-2"), "born_op"));
  CHECK(has(changed("\"dies_op\":1", "\"dies_op\":2"), "dies_op"));
  CHECK(has(changed("\"fingerprint\":\"", "\"fingerprint\":\"0"), "fingerprint"));
  CHECK(has(changed("\"micro_batch\":2", "\"micro_batch\":3"), "fingerprint is "));
  CHECK(has(changed("\"schema\":", "\"schema\":\"plimsoll.plan/1\",\"schema\":"), "stands twice"));
  CHECK(has(refusal(read_measurement, measured(empty_rank("0") + "," + empty_rank("0"))),
            "each rank once"));
  CHECK(has(refusal(read_measurement, measured(empty_rank("2"))), "less than world_size"));
}

TEST_CASE("a rank of a plan says which it is, and its stage") {
  const std::string plan = document(detailed_plan());
  const auto without = [&](const std::string& part) {
    std::string text = plan;
    const std::size_t at = text.find(part, text.find("\"ranks\":"));
    REQUIRE(at != std::string::npos);
    return refusal(read_prediction, text.erase(at, part.size()));
  };
  CHECK(has(without("\"pipeline_stage\":0,"), "ranks[0].pipeline_stage is missing"));
  CHECK(has(without("\"rank\":0,"), "ranks[0].rank is missing"));
}
