// Plans held against what they were: 1 GiB = 1073741824 B, of which 2 % are 21474836.48 B.
#include "reports/growth.h"

#include <doctest/doctest.h>

#include "models/base/error.h"
#include "tests/reports/made_up_plan.h"

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {
using RowVerdict = GrowthRow::Verdict;

PlanFigures figures(const std::string& name, Bytes peak, Bytes reserved, Bytes device,
                    std::optional<bool> fits = true) {
  return {.name = name,
          .file = "plans/" + name + ".json",
          .fingerprint = "f",
          .fits = fits,
          .peak = peak,
          .reserved = reserved,
          .device = device};
}

GrowthRow against(const PlanFigures& before, const PlanFigures& now, double most) {
  const Growth all = growth({now}, std::vector{before}, most);
  REQUIRE(all.rows.size() == 1);
  return all.rows[0];
}

// One of each verdict.
Growth five() {
  const std::vector<PlanFigures> before{
      figures("a", 1_GiB, 2_GiB, 3_GiB), figures("b", 1_GiB, 2_GiB, 3_GiB),
      figures("c", 1_GiB, 2_GiB, 3_GiB), figures("z<&\">", 1_GiB, 2_GiB, 3_GiB)};
  PlanFigures c = figures("c", 1_GiB, 2_GiB, 3_GiB, false);
  c.fingerprint = "g";
  return growth({figures("a", 1_GiB, 2_GiB, 3_GiB), figures("b", 1_GiB, 3_GiB, 4_GiB), c,
                 figures("d", 1_GiB, 2_GiB, 3_GiB)},
                before, 0.02);
}

std::string refusal(const std::string& document) {
  try {
    (void)read_baseline(document, "b.json");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return error.message();
  }
  return "";
}
}  // namespace

TEST_CASE("a plan grew where one of its figures is more than allowed above what it was") {
  const PlanFigures before = figures("a", 1_GiB, 2_GiB, 4_GiB);
  CHECK(against(before, before, 0).verdict == RowVerdict::within);
  CHECK(against(before, figures("a", 1_GiB + 1_B, 2_GiB, 4_GiB), 0).verdict == RowVerdict::grew);
  CHECK(against(before, figures("a", 1_GiB, 2_GiB, 4_GiB + 1_B), 0).verdict == RowVerdict::grew);
  // 2 % of a GiB, the last byte below and the first above.
  CHECK(against(before, figures("a", 1_GiB + 21474836_B, 2_GiB, 4_GiB), 0.02).verdict ==
        RowVerdict::within);
  CHECK(against(before, figures("a", 1_GiB + 21474837_B, 2_GiB, 4_GiB), 0.02).verdict ==
        RowVerdict::grew);
  const GrowthRow shrunk = against(before, figures("a", 512_MiB, 1_GiB, 3_GiB), 0);
  CHECK(shrunk.verdict == RowVerdict::within);
  CHECK(shrunk.growth == -0.25);  // the one that shrank least
  CHECK(shrunk.text == "device 4.00 GiB to 3.00 GiB (-25.00 %)");
}

TEST_CASE("the largest of the growths is the one that is told") {
  const PlanFigures before = figures("a", 1_GiB, 2_GiB, 4_GiB);
  const GrowthRow row = against(before, figures("a", 1_GiB, 3_GiB, 5_GiB), 0.1);
  CHECK(row.growth == 0.5);
  CHECK(row.text == "reserved 2.00 GiB to 3.00 GiB (+50.00 %), more than 10 %");
  CHECK(row.failed());
  // From nothing to something is more than any share; nothing twice is none.
  CHECK(against(figures("a", 0_B, 2_GiB, 4_GiB), figures("a", 1_B, 2_GiB, 4_GiB), 1000).verdict ==
        RowVerdict::grew);
  CHECK(against(figures("a", 0_B, 2_GiB, 4_GiB), figures("a", 0_B, 2_GiB, 4_GiB), 0).verdict ==
        RowVerdict::within);
}

TEST_CASE("what fitted and does no longer fails, however little it grew") {
  const PlanFigures fitted = figures("a", 1_GiB, 2_GiB, 4_GiB);
  const auto verdict = [](std::optional<bool> before, std::optional<bool> now) {
    return against(figures("a", 1_GiB, 2_GiB, 4_GiB, before),
                   figures("a", 1_GiB, 2_GiB, 4_GiB, now), 0)
        .verdict;
  };
  CHECK(verdict(true, false) == RowVerdict::no_longer_fits);
  CHECK(verdict(false, false) == RowVerdict::within);
  CHECK(verdict(false, true) == RowVerdict::within);
  CHECK(verdict(std::nullopt, false) == RowVerdict::within);
  CHECK(verdict(true, std::nullopt) == RowVerdict::within);
  PlanFigures now = figures("a", 1_GiB, 2_GiB, 5_GiB, false);
  now.fingerprint = "other";
  CHECK(against(fitted, now, 0.01).text ==
        "device 4.00 GiB to 5.00 GiB (+25.00 %), more than 1 %; it fitted, and does no longer; "
        "another workload");
}

TEST_CASE("plans join by name, one against one whatever their names, and no name is there twice") {
  const std::vector<PlanFigures> one{figures("a", 1_GiB, 2_GiB, 3_GiB)};
  const Growth renamed = growth({figures("b", 1_GiB, 2_GiB, 3_GiB)}, one, 0);
  REQUIRE(renamed.rows.size() == 1);
  CHECK(renamed.rows[0].verdict == RowVerdict::within);
  CHECK(growth(one, std::nullopt, 0).rows[0].verdict == RowVerdict::is_new);
  CHECK(!growth(one, std::nullopt, 0).has_baseline);
  const Growth two = growth({figures("a", 1_GiB, 2_GiB, 3_GiB), figures("b", 1_GiB, 2_GiB, 3_GiB)},
                            std::vector{figures("c", 1_GiB, 2_GiB, 3_GiB)}, 0);
  REQUIRE(two.rows.size() == 3);
  CHECK(two.rows[0].verdict == RowVerdict::is_new);
  CHECK(two.rows[2].verdict == RowVerdict::is_gone);
  CHECK(two.ok());  // neither is a failure
  CHECK_THROWS_WITH_AS((void)growth({one[0], one[0]}, std::nullopt, 0),
                       "plans/a.json: another plan is called a too", Error);
}

TEST_CASE("what grew, as a table for people") {
  CHECK(growth_table(five(), {}) ==
        R"(GREW: 2 of 5 plans, 2 % is allowed
  a      peak 1.00 GiB to 1.00 GiB (+0.00 %)
  b      grew: reserved 2.00 GiB to 3.00 GiB (+50.00 %), more than 2 %
  c      no longer fits: peak 1.00 GiB to 1.00 GiB (+0.00 %); it fitted, and
         does no longer; another workload
  d      new: peak 1.00 GiB, device 3.00 GiB
  z<&">  gone: in the baseline, and not among the plans
)");
  const std::vector<PlanFigures> one{figures("a", 1_GiB, 2_GiB, 3_GiB)};
  CHECK(growth_table(growth(one, one, 0.5), {}) ==
        "OK: 1 plan within 50 %\n  a  peak 1.00 GiB to 1.00 GiB (+0.00 %)\n");
  CHECK(growth_table(growth(one, std::nullopt, 0), {}) ==
        "1 plan\n  a  peak 1.00 GiB, device 3.00 GiB\n");
  const std::string name(31, 'n');  // names have 30 columns
  CHECK(growth_table(growth({figures(name, 1_GiB, 2_GiB, 3_GiB)}, std::nullopt, 0), {}) ==
        "1 plan\n  " + std::string(29, 'n') + "…  peak 1.00 GiB, device 3.00 GiB\n");
  const std::string coloured = growth_table(five(), {.colour = true});
  CHECK(coloured.starts_with("\x1b[31;1mGREW: 2 of 5"));
  CHECK(coloured.find("\x1b[31;1mgrew: reserved") != std::string::npos);
  CHECK(coloured.find("\x1b[31;1mpeak") == std::string::npos);  // what is within has no colour
  CHECK(growth_table(growth(one, one, 0), {.colour = true}).starts_with("\x1b[32;1mOK: 1 plan"));
}

TEST_CASE("what grew, as a test report and as marks of a review") {
  CHECK(growth_junit(five()) ==
        R"--(<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="plimsoll check" tests="5" failures="2" errors="0" skipped="1">
  <testcase classname="plimsoll.memory" name="a" file="plans/a.json"><system-out>peak 1.00 GiB to 1.00 GiB (+0.00 %)</system-out></testcase>
  <testcase classname="plimsoll.memory" name="b" file="plans/b.json"><failure type="grew" message="reserved 2.00 GiB to 3.00 GiB (+50.00 %), more than 2 %"/></testcase>
  <testcase classname="plimsoll.memory" name="c" file="plans/c.json"><failure type="no longer fits" message="peak 1.00 GiB to 1.00 GiB (+0.00 %); it fitted, and does no longer; another workload"/></testcase>
  <testcase classname="plimsoll.memory" name="d" file="plans/d.json"><system-out>peak 1.00 GiB, device 3.00 GiB</system-out></testcase>
  <testcase classname="plimsoll.memory" name="z&lt;&amp;&quot;&gt;" file="plans/z&lt;&amp;&quot;&gt;.json"><skipped message="in the baseline, and not among the plans"/></testcase>
</testsuite>
)--");
  // docs.github.com, workflow commands: % is %25; of a property : is %3A and , is %2C.
  CHECK(growth_annotations(five()) ==
        "::error file=plans/b.json,title=b%3A grew::reserved 2.00 GiB to 3.00 GiB (+50.00 %25), "
        "more than 2 %25\n"
        "::error file=plans/c.json,title=c%3A no longer fits::peak 1.00 GiB to 1.00 GiB (+0.00 "
        "%25); it fitted, and does no longer; another workload\n"
        "::notice file=plans/d.json,title=d%3A new::peak 1.00 GiB, device 3.00 GiB\n");
  const std::vector<PlanFigures> comma{figures("a,b", 1_GiB, 2_GiB, 3_GiB)};
  CHECK(growth_annotations(growth(comma, std::vector<PlanFigures>{}, 0)) ==
        "::notice file=plans/a%2Cb.json,title=a%2Cb%3A new::peak 1.00 GiB, device 3.00 GiB\n");
  CHECK(growth_annotations(growth(comma, std::nullopt, 0)) == "");  // nothing to be new against
}

TEST_CASE("what grew, as a document, and read back from it as the next baseline") {
  const std::string document = pretty([](JsonWriter& json) {
    write_growth(json, five(), {"1", "abc"});
  });
  CHECK(document == R"--({
  "schema": "plimsoll.check/1",
  "tool": {"version": "1", "commit": "abc"},
  "ok": false,
  "max_growth": 0.02,
  "plans": [
    {
      "name": "a",
      "file": "plans/a.json",
      "verdict": "within",
      "growth": 0.0,
      "text": "peak 1.00 GiB to 1.00 GiB (+0.00 %)",
      "before": {"fingerprint": "f", "fits": true, "peak_bytes": 1073741824, "reserved_bytes": 2147483648, "device_bytes": 3221225472},
      "now": {"fingerprint": "f", "fits": true, "peak_bytes": 1073741824, "reserved_bytes": 2147483648, "device_bytes": 3221225472}
    },
    {
      "name": "b",
      "file": "plans/b.json",
      "verdict": "grew",
      "growth": 0.5,
      "text": "reserved 2.00 GiB to 3.00 GiB (+50.00 %), more than 2 %",
      "before": {"fingerprint": "f", "fits": true, "peak_bytes": 1073741824, "reserved_bytes": 2147483648, "device_bytes": 3221225472},
      "now": {"fingerprint": "f", "fits": true, "peak_bytes": 1073741824, "reserved_bytes": 3221225472, "device_bytes": 4294967296}
    },
    {
      "name": "c",
      "file": "plans/c.json",
      "verdict": "no longer fits",
      "growth": 0.0,
      "text": "peak 1.00 GiB to 1.00 GiB (+0.00 %); it fitted, and does no longer; another workload",
      "before": {"fingerprint": "f", "fits": true, "peak_bytes": 1073741824, "reserved_bytes": 2147483648, "device_bytes": 3221225472},
      "now": {"fingerprint": "g", "fits": false, "peak_bytes": 1073741824, "reserved_bytes": 2147483648, "device_bytes": 3221225472}
    },
    {
      "name": "d",
      "file": "plans/d.json",
      "verdict": "new",
      "growth": null,
      "text": "peak 1.00 GiB, device 3.00 GiB",
      "before": null,
      "now": {"fingerprint": "f", "fits": true, "peak_bytes": 1073741824, "reserved_bytes": 2147483648, "device_bytes": 3221225472}
    },
    {
      "name": "z<&\">",
      "file": "plans/z<&\">.json",
      "verdict": "gone",
      "growth": null,
      "text": "in the baseline, and not among the plans",
      "before": {"fingerprint": "f", "fits": true, "peak_bytes": 1073741824, "reserved_bytes": 2147483648, "device_bytes": 3221225472},
      "now": null
    }
  ]
})--");
  const std::vector<PlanFigures> next = read_baseline(document, "b.json");
  REQUIRE(next.size() == 4);  // what was gone is no baseline
  CHECK(next[1].name == "b");
  CHECK(next[1].file == "plans/b.json");
  CHECK(next[1].peak == 1_GiB);
  CHECK(next[1].reserved == 3_GiB);
  CHECK(next[1].device == 4_GiB);
  CHECK(next[2].fingerprint == "g");
  CHECK(next[2].fits == false);
  CHECK(next[0].fits == true);
  CHECK(pretty([](JsonWriter& json) {
          write_growth(json, growth({}, std::nullopt, 0.5), {"1", "abc"});
        }).find("\"max_growth\": null") != std::string::npos);
}

TEST_CASE("a document that is no baseline is refused by what is wrong with it") {
  CHECK(refusal("{}") ==
        "b.json: a document of schema (none); a baseline is what plimsoll check wrote with --json, "
        "or a plan");
  CHECK(refusal("{\"schema\": \"plimsoll.oom/1\"}").find("of schema plimsoll.oom/1;") !=
        std::string::npos);
  const std::string long_name(61, 's');
  CHECK(refusal("{\"schema\": \"" + long_name + "\"}").find(" " + std::string(57, 's') + "...;") !=
        std::string::npos);
  const auto with = [](const std::string& plan) {
    return refusal("{\"schema\": \"plimsoll.check/1\", \"plans\": [" + plan + "]}");
  };
  CHECK(with("") == "");
  const std::string all = R"("peak_bytes": 1, "reserved_bytes": 2, "device_bytes": 3)";
  CHECK(with("{\"name\": \"a\", \"now\": {" + all + "}}") == "");
  CHECK(with("{\"now\": {" + all + "}}").find("name") != std::string::npos);
  for (const char* key : {"peak_bytes", "reserved_bytes", "device_bytes"}) {
    std::string less = all;
    less.replace(less.find(key), 4, "none");
    CHECK_MESSAGE(with("{\"name\": \"a\", \"now\": {" + less + "}}").find(key) != std::string::npos,
                  key);
  }
}
