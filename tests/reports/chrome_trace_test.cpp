#include "reports/traces/chrome_trace.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "models/base/error.h"
#include "tests/reports/made_up_plan.h"

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {
// Three ops: 10 GiB of parameters throughout, 20 GiB of activations in the first two.
Plan three_ops() {
  Plan plan = made_up_plan();
  plan.peak = 30_GiB;
  plan.timeline = {{.op = "layers.0.fsdp.all_gather", .phase = "forward"},
                   {.op = "layers.0.mlp", .phase = "forward"},
                   {.op = "optimizer.step", .phase = "optimizer"}};
  plan.timeline[0].by_category = plan.timeline[1].by_category = {10_GiB, 0_B, 0_B, 20_GiB};
  plan.timeline[2].by_category = {10_GiB};
  for (TimelinePoint& op : plan.timeline) op.high_water = sum(op.by_category);
  plan.tensors[0].repeat = 1;
  return plan;
}

Plan two_ops() {
  Plan plan = made_up_plan();
  plan.peak = 30_GiB;
  plan.timeline = {{.op = "layers.0.fsdp.all_gather", .phase = "forward", .allocated = 10_GiB},
                   {.op = "layers.0.mlp", .phase = "backward", .allocated = 29_GiB}};
  plan.timeline[0].by_category = {10_GiB};
  plan.timeline[1].by_category = {10_GiB, 0_B, 0_B, 20_GiB};
  for (TimelinePoint& op : plan.timeline) op.high_water = sum(op.by_category);
  plan.tensors[0].repeat = 1;
  return plan;
}

std::vector<nlohmann::json> events(const nlohmann::json& trace, const char* kind) {
  std::vector<nlohmann::json> out;
  for (const auto& event : trace["traceEvents"])
    if (event["ph"] == kind) out.push_back(event);
  return out;
}
}  // namespace

TEST_CASE("a trace has a counter and a span of one microsecond for each op") {
  const auto trace = nlohmann::json::parse(chrome_trace(history_of(three_ops()), {"1", "abc"}));
  const auto counters = events(trace, "C");
  REQUIRE(counters.size() == 3);
  CHECK(counters[1]["ts"] == 1);
  CHECK(counters[1]["args"]["parameters"] == (10_GiB).value());
  CHECK(counters[1]["args"]["activations"] == (20_GiB).value());
  CHECK(counters[2]["args"]["activations"] == 0);
  const auto spans = events(trace, "X");
  REQUIRE(spans.size() == 5);  // two phases, three ops
  CHECK(spans[0]["name"] == "forward");
  CHECK(spans[0]["dur"] == 2);
  CHECK(spans[1]["ts"] == 2);
  CHECK(spans[2]["name"] == "layers.0.fsdp.all_gather");
  CHECK(spans[2]["tid"] != spans[3]["tid"]);  // communication, computation
  CHECK(spans[3]["tid"] == spans[4]["tid"]);
  CHECK(spans[3]["args"]["high_water_bytes"] == (30_GiB).value());
  CHECK(trace["otherData"]["peak_bytes"] == (30_GiB).value());
  CHECK(trace["otherData"]["step_seconds"] == 2.0);  // beside a time that is no time
}

TEST_CASE("collectives of the whole step stand in a trace with their counts") {
  const auto marks =
      events(nlohmann::json::parse(chrome_trace(history_of(three_ops()), {"1", "abc"})), "i");
  REQUIRE(marks.size() == 1);
  CHECK(marks[0]["args"] == nlohmann::json::parse(R"({"count": 64, "array_bytes": 1073741824,
                                                     "group": 8})"));
}

TEST_CASE("names from files are text in a trace") {
  Plan plan = three_ops();
  plan.model_name = "\"}]\n\xff";
  plan.timeline[1].op = "a\"b\\";
  const auto trace = nlohmann::json::parse(chrome_trace(history_of(plan), {"1", "abc"}));
  CHECK(events(trace, "X")[3]["name"] == "a\"b\\");
}

TEST_CASE("an abridged plan has no trace: its lines stand for several tensors") {
  CHECK_THROWS_AS(history_of(made_up_plan()), Error);
}

TEST_CASE("a trace of two ops, from the first line to the last") {
  CHECK(chrome_trace(history_of(two_ops()), {"1", "abc"}) == R"--({
  "displayTimeUnit": "ms",
  "otherData": {
    "program": "plimsoll 1",
    "commit": "abc",
    "model": "tiny-llama",
    "fingerprint": "0123456789abcdef",
    "rank": 0,
    "origin": "planned",
    "time": "one op is one microsecond: order, not seconds (no op's own time is known)",
    "step_seconds": 2.0,
    "peak_bytes": 32212254720
  },
  "traceEvents": [
    {"ph": "M", "pid": 0, "name": "process_name", "tid": 0, "args": {"name": "tiny-llama, rank 0, planned; one op is 1 us, not to scale"}},
    {"ph": "M", "pid": 0, "name": "thread_name", "tid": 1, "args": {"name": "phases"}},
    {"ph": "M", "pid": 0, "name": "thread_name", "tid": 2, "args": {"name": "ops"}},
    {"ph": "M", "pid": 0, "name": "thread_name", "tid": 3, "args": {"name": "communication"}},
    {"ph": "M", "pid": 0, "name": "thread_sort_index", "tid": 1, "args": {"sort_index": 1}},
    {"ph": "M", "pid": 0, "name": "thread_sort_index", "tid": 2, "args": {"sort_index": 2}},
    {"ph": "M", "pid": 0, "name": "thread_sort_index", "tid": 3, "args": {"sort_index": 3}},
    {"ph": "C", "pid": 0, "name": "memory", "ts": 0, "args": {"parameters": 10737418240, "gradients": 0, "optimizer": 0, "activations": 0, "logits": 0, "temporaries": 0, "communication": 0, "workspace": 0}},
    {"ph": "C", "pid": 0, "name": "memory", "ts": 1, "args": {"parameters": 10737418240, "gradients": 0, "optimizer": 0, "activations": 21474836480, "logits": 0, "temporaries": 0, "communication": 0, "workspace": 0}},
    {"ph": "X", "pid": 0, "name": "forward", "tid": 1, "ts": 0, "dur": 1},
    {"ph": "X", "pid": 0, "name": "backward", "tid": 1, "ts": 1, "dur": 1},
    {"ph": "X", "pid": 0, "name": "layers.0.fsdp.all_gather", "tid": 3, "ts": 0, "dur": 1, "cat": "forward", "args": {"high_water_bytes": 10737418240, "allocated_bytes": 10737418240}},
    {"ph": "X", "pid": 0, "name": "layers.0.mlp", "tid": 2, "ts": 1, "dur": 1, "cat": "backward", "args": {"high_water_bytes": 32212254720, "allocated_bytes": 31138512896}},
    {"ph": "i", "pid": 0, "name": "all_gather of the step", "tid": 3, "ts": 0, "s": "t", "args": {"count": 64, "array_bytes": 1073741824, "group": 8}}
  ]
}
)--");
}
