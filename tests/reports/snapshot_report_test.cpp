// What is said of a plan and a snapshot of a run, for people, for programs and as a page.
#include "reports/snapshot/snapshot_report.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "reports/page/page.h"
#include "tests/reports/made_up_plan.h"

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {
SnapshotComparison disagreeing() {
  SnapshotComparison c;
  c.prediction = "plan.json";
  c.snapshot = "run.pickle";
  c.fingerprint = "0123";
  c.model = "tiny";
  c.stack = "pytorch";
  c.device = 1;
  c.events = 9'000;
  c.first_event = 1'200;
  c.last_event = 3'400;
  c.predicted_peak = 4_GiB;
  c.measured_peak = 5_GiB;
  c.predicted_reserved = 6_GiB;
  c.measured_reserved = 5_GiB + 512_MiB;
  c.highest_allocated = 7_GiB;
  c.highest_reserved = 8_GiB;
  c.left_behind = 3_MiB;
  c.plan = {.found = 90, .count = 100, .found_bytes = 3_GiB, .bytes = 4_GiB};
  c.measured = {.found = 1'000, .count = 2'000, .found_bytes = 2_GiB, .bytes = 4_GiB};
  c.at_peak = {.found = 5, .count = 5, .found_bytes = 5_GiB, .bytes = 5_GiB};
  c.scratch = 12;
  c.scratch_bytes = 24_MiB;
  c.only_measured = {{.name = "train.py:7", .size = 1_MiB, .count = 3, .at_peak = true},
                     {.name = "", .size = 2_MiB, .count = 1, .stays = true}};
  c.only_planned = {{.name = "layers.*.q", .category = "activations", .size = 512_KiB, .count = 2}};
  c.outlived = {
      {.name = "layers.*.k", .category = "activations", .size = 1_KiB, .count = 1, .stays = true}};
  c.notes = {"A note."};
  return c;
}

SnapshotComparison agreeing() {
  SnapshotComparison c;
  c.prediction = "plan.json";
  c.snapshot = "run.pickle";
  c.stack = "pytorch";
  c.agrees = true;
  c.predicted_peak = c.measured_peak = c.highest_allocated = 4_GiB;
  c.measured_reserved = c.highest_reserved = 5_GiB;
  return c;
}

std::string document(const std::vector<SnapshotComparison>& comparisons) {
  return pretty([&](JsonWriter& json) {
    write_snapshot_comparisons(json, comparisons, {"1", "abc"});
  });
}

// The page's body, an element a line, without words of style.
std::string body(const std::vector<SnapshotComparison>& comparisons) {
  std::string html = page(document(comparisons), "made up");
  html = html.substr(html.find("<main>"));
  for (std::size_t at = 0; (at = html.find("><", at)) != std::string::npos;)
    html.insert(++at, "\n");
  return html;
}
bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}
}  // namespace

// 5 GiB of 4 are 1 more, 5.5 of 6 are 512 MiB less; 3 of 4 GiB found leave a quarter.
TEST_CASE("a snapshot that disagrees, as a table for people") {
  CHECK(snapshot_table(disagreeing(), {}) ==
        R"(DISAGREES: tiny, stack pytorch, and the snapshot of a run

In one step             predicted        measured      difference
  peak                  4.00 GiB        5.00 GiB       +1.00 GiB
  reserved              6.00 GiB        5.50 GiB        -512 MiB

Found
  tensors of the plan    90 of 100, 75.0 % of 4.00 GiB
  allocations            1,000 of 2,000, 50.0 % of 4.00 GiB
  those at the peak      5 of 5, 100.0 % of 5.00 GiB
  and 12 allocations, 24.0 MiB, of scratch that comes and goes within an
    operator; the plan counts it while that runs

In the snapshot, and not in the plan
    3.00 MiB        3 x 1.00 MiB  train.py:7
    2.00 MiB                      no stack was recorded (stays)

In the plan, and not in the snapshot
    1.00 MiB         2 x 512 KiB  layers.*.q

Found, and kept beyond the step
    1.00 KiB                      layers.*.k

Step: events 1,200 to 3,400 of 9,000.
It leaves 3.00 MiB more allocated than it found.
Elsewhere in the history up to 7.00 GiB were allocated.
Note: A note.
)");
}

TEST_CASE("a snapshot that agrees says no more than that, and what is not predicted is a dash") {
  const std::string text = snapshot_table(agreeing(), {});
  CHECK(text.starts_with("AGREES: no model, stack pytorch, and the snapshot of a run\n"));
  CHECK(has(text, "  peak                  4.00 GiB        4.00 GiB             0 B\n"));
  CHECK(has(text, "  reserved                     -        5.00 GiB               -\n"));
  for (const char* absent : {"scratch", "In the snapshot, and not", "In the plan, and not",
                             "kept beyond", "leaves", "Elsewhere", "Note:"})
    CHECK_MESSAGE(!has(text, absent), std::string(absent));
  CHECK(snapshot_table(agreeing(), {.colour = true}).starts_with("\x1b[32;1mAGREES"));
  CHECK(snapshot_table(disagreeing(), {.colour = true}).starts_with("\x1b[31;1mDISAGREES"));
}

TEST_CASE("of many kinds eight are shown, and what the others are together") {
  SnapshotComparison c = agreeing();
  for (int i = 0; i < 8; ++i)
    c.only_measured.push_back({.name = "kind " + std::to_string(i), .size = 1_MiB, .count = 1});
  CHECK(!has(snapshot_table(c, {}), "more kinds"));
  c.only_measured.push_back({.name = "kind 8", .size = 2_MiB, .count = 3});
  c.only_measured.push_back({.name = "kind 9", .size = 1_MiB, .count = 1});
  const std::string text = snapshot_table(c, {});
  CHECK(has(text, "kind 7\n"));
  CHECK(!has(text, "kind 8"));
  CHECK(has(text, "    7.00 MiB  in 2 more kinds\n"));  // 2 · 3 + 1
}

TEST_CASE("a snapshot's comparison, as a document") {
  CHECK(document({disagreeing()}) == R"--({
  "schema": "plimsoll.snapshot_comparison/1",
  "tool": {"version": "1", "commit": "abc"},
  "agrees": false,
  "prediction": "plan.json",
  "snapshot": "run.pickle",
  "workload": {"fingerprint": "0123", "model": "tiny", "stack": "pytorch"},
  "step": {"device": 1, "events": 9000, "first_event": 1200, "last_event": 3400},
  "peak": {"predicted_bytes": 4294967296, "measured_bytes": 5368709120, "difference_bytes": 1073741824, "highest_measured_bytes": 7516192768},
  "reserved": {"predicted_bytes": 6442450944, "measured_bytes": 5905580032, "difference_bytes": -536870912, "highest_measured_bytes": 8589934592},
  "left_behind_bytes": 3145728,
  "planned_tensors": {"found": 90, "count": 100, "found_bytes": 3221225472, "bytes": 4294967296, "without_partner": 0.25},
  "allocations": {"found": 1000, "count": 2000, "found_bytes": 2147483648, "bytes": 4294967296, "without_partner": 0.5},
  "allocations_at_peak": {"found": 5, "count": 5, "found_bytes": 5368709120, "bytes": 5368709120, "without_partner": 0.0},
  "scratch": {"count": 12, "bytes": 25165824},
  "only_measured": [
    {"where": "train.py:7", "count": 3, "bytes": 1048576, "total_bytes": 3145728, "at_peak": true, "stays": false},
    {"where": null, "count": 1, "bytes": 2097152, "total_bytes": 2097152, "at_peak": false, "stays": true}
  ],
  "only_planned": [
    {"name": "layers.*.q", "category": "activations", "count": 2, "bytes": 524288, "total_bytes": 1048576, "stays": false}
  ],
  "outlived": [
    {"name": "layers.*.k", "category": "activations", "count": 1, "bytes": 1024, "total_bytes": 1024, "stays": true}
  ],
  "notes": [
    "A note."
  ]
})--");
  const std::string agrees = document({agreeing()});
  CHECK(has(agrees, "\"model\": null"));
  CHECK(has(agrees,
            "{\"predicted_bytes\": null, \"measured_bytes\": 5368709120, "
            "\"difference_bytes\": null, \"highest_measured_bytes\": 5368709120}"));
  CHECK(has(document({agreeing(), disagreeing()}), "\"agrees\": false,\n  \"comparisons\": ["));
  CHECK(has(document({agreeing(), agreeing()}), "\"agrees\": true,\n  \"comparisons\": ["));
}

TEST_CASE("a snapshot's comparison, as a page") {
  const std::string text = body({disagreeing()});
  for (const char* part :
       {"<h1>A run's memory against its plan</h1>",
        "<p class=\"verdict not\">The plan and the snapshot disagree</p>",
        "<p class=\"faint\">plan.json and run.pickle</p>",
        "<td class=\"n\">+1.00 GiB</td>",
        "<td class=\"n\">−512 MiB</td>",
        "<td class=\"n\">90</td>\n<td class=\"n\">100</td>",
        "<td class=\"n\">25.0 %</td>",
        "<i style=\"width:75.00%;background:var(--good)\" title=\"found\">",
        "<i style=\"width:25.00%;background:var(--bad)\" title=\"not found\">",
        "<i style=\"width:100.00%;background:var(--good)\" title=\"found\">",
        "<p>And 12 allocations, 24.0 MiB, of scratch that comes and goes within an operator; the "
        "plan counts it while that runs.</p>",
        "<h2>In the snapshot, and not in the plan</h2>",
        "<td class=\"w\">train.py:7</td>\n<td class=\"w\">at the peak</td>",
        "<td class=\"w\">no stack was recorded</td>\n<td class=\"w\">stays</td>",
        "<h2>In the plan, and not in the snapshot</h2>",
        "<td class=\"w\">layers.*.q</td>\n<td class=\"w\">activations</td>",
        "<h2>Found, and kept beyond the step</h2>",
        "<td class=\"w\">layers.*.k</td>\n<td class=\"w\">activations, stays</td>",
        "<p>The step: events 1,200 to 3,400 of 9,000, on device 1.</p>",
        "<p class=\"borderline\">It leaves 3.00 MiB more allocated than it found.</p>",
        "<li>A note.</li>"})
    CHECK_MESSAGE(has(text, part), std::string(part));
  const std::string agrees = body({agreeing()});
  CHECK(has(agrees, "<p class=\"verdict agrees\">The plan and the snapshot agree</p>"));
  CHECK(has(agrees, "<td class=\"n\">–</td>"));
  for (const char* absent : {"scratch", "<h2>", "leaves", "largest"})
    CHECK_MESSAGE(!has(agrees, absent), std::string(absent));
  CHECK(has(body({agreeing(), disagreeing()}), "<h2>run.pickle</h2>"));
}

TEST_CASE("a page shows fifty kinds of many") {
  SnapshotComparison c = agreeing();
  for (int i = 0; i < 50; ++i)
    c.only_planned.push_back({.name = "kind" + std::to_string(i), .size = 1_MiB, .count = 1});
  CHECK(!has(body({c}), "kinds</caption>"));
  CHECK(has(body({c}), "<td class=\"w\">kind49</td>"));
  c.only_planned.push_back({.name = "kind50", .size = 1_MiB, .count = 1});
  CHECK(has(body({c}), "<caption>the largest 50 of 51 kinds</caption>"));
  CHECK(!has(body({c}), "<td class=\"w\">kind50</td>"));
}
