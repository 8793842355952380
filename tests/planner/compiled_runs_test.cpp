// Steps whose layers Inductor compiled, on a CUDA runtime that computes nothing
// (tools/oracle/dry_runs.py --cases dry_runs_compiled_cases.json), against their plans.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>

#include "models/model_catalog.h"
#include "tests/planner/dry_plan.h"

using namespace plimsoll;
using nlohmann::json;

// Inductor joins kernels and orders them for a lower peak (torch/_inductor/scheduler.py,
// memory.py); the plan has one order, that of the graph. So the peak is not exact.
TEST_CASE("steps with compiled layers peak within 1 % of those that Inductor compiled") {
  const json document = json::parse(std::ifstream(PLIMSOLL_GOLDEN "/dry_runs_compiled.json"));
  double worst = 0, worst_reserved = 0;
  for (const json& run : document["runs"]) {
    const std::string name = run["case"];
    CAPTURE(name);
    const json& workload = run["workload"];
    const planner::Reserved planned =
        tests::plan_dry_run(workload,
                            models::catalog_model(workload["model"]["name"].get<std::string>()))
            .planned;
    const double peak = planned.allocated.real() / run["peak_bytes"].get<double>() - 1;
    const double reserved = planned.reserved.real() / run["reserved_bytes"].get<double>() - 1;
    CHECK(std::abs(peak) < 0.01);
    CHECK(std::abs(reserved) < 0.06);
    MESSAGE(name << " peak " << 100 * peak << " % reserved " << 100 * reserved << " %");
    worst = std::max(worst, std::abs(peak));
    worst_reserved = std::max(worst_reserved, std::abs(reserved));
  }
  MESSAGE("worst " << worst << " " << worst_reserved);
  CHECK(document["runs"].size() >= 8);
}
