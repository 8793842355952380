// Steps whose layers Inductor compiled, on a CUDA runtime that computes nothing
// (tools/oracle/dry_runs.py --cases dry_runs_compiled_cases.json), against their plans.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>

#include "models/model_catalog.h"
#include "tests/planner/dry_plan.h"
#include "tests/planner/to_the_byte.h"

using namespace plimsoll;
using nlohmann::json;

namespace {

struct Limits {
  double peak, resident, reserved;
};

void check_runs(const std::string& file, std::size_t least,
                Limits (*limits_of)(const std::string&)) {
  const json document = json::parse(std::ifstream(PLIMSOLL_GOLDEN "/" + file));
  tests::ToTheByte exact;
  for (const json& run : document["runs"]) {
    const std::string name = run["case"];
    CAPTURE(name);
    const json& workload = run["workload"];
    const models::ModelSpec model =
        models::catalog_model(workload["model"]["name"].get<std::string>());
    const planner::Reserved planned = tests::plan_dry_run(workload, model).planned;
    const double peak = planned.allocated.real() / run["peak_bytes"].get<double>() - 1;
    const double reserved = planned.reserved.real() / run["reserved_bytes"].get<double>() - 1;
    const double resident = planned.resident.real() / run["resident_bytes"].get<double>() - 1;
    const Limits limits = limits_of(name);
    CHECK(std::abs(peak) < limits.peak);
    CHECK(std::abs(resident) < limits.resident);
    CHECK(std::abs(reserved) < limits.reserved);
    exact.count(planned, run);
  }
  tests::check_to_the_byte(file, exact);
  CHECK(document["runs"].size() >= least);
}

}  // namespace

// Inductor joins kernels that read the same, and orders them for a lower peak where it finds one
// (torch/_inductor/scheduler.py, memory.py); the plan has the graph's order alone. Where a layer's
// own backward is the peak that shows; elsewhere the peak is exact.
TEST_CASE("steps with compiled layers peak within 0.25 % of those that Inductor compiled") {
  check_runs("dry_runs_compiled.json", 19, [](const std::string& name) -> Limits {
    // OLMo 2's: planned 6.5 % too much, of gaps between blocks of 90 MB.
    return {0.0025, 0.002, name.starts_with("olmo-2") ? 0.07 : 0.035};
  });
}

TEST_CASE("compiled layers of which some are checkpoints: drawn runs peak within 0.31 %") {
  check_runs("dry_runs_compiled_draw.json", 12, [](const std::string& name) -> Limits {
    // Llama 2 on 64 GPUs: planned 6.6 % too much, of gaps that a peak 0.3 % lower does not leave.
    // GPT-2 XL: states of the first step in blocks of its temporaries that are not worth splitting.
    return {0.0031, name.ends_with("gpt2-xl") ? 0.006 : 0.002,
            name.ends_with("11-llama-2-7b-titan") ? 0.07 : 0.035};
  });
}
