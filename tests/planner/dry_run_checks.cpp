#include "tests/planner/dry_run_checks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/model_catalog.h"
#include "models/model_reader.h"
#include "planner/plan.h"
#include "tests/planner/dry_plan.h"
#include "tests/planner/to_the_byte.h"

namespace plimsoll::tests {

using nlohmann::json;

namespace {
constexpr std::int64_t kTableOfCodes = 256 * 4;  // bitsandbytes'
}  // namespace

double error(Bytes planned, double measured) {
  return planned.real() / measured - 1;
}

models::ModelSpec model_of(const json& model) {
  const std::string name = model["name"];
  return model.contains("config") ? models::read_model(model["config"].dump(), name, name, {})
                                  : models::catalog_model(name);
}

void check_runs(const std::string& file, const Known& known, std::size_t least,
                const Unplanned& unplanned) {
  const json document = json::parse(std::ifstream(PLIMSOLL_GOLDEN "/" + file));
  double worst_peak = 0, worst_reserved = 0;
  std::size_t runs = 0, others = 0;
  ToTheByte exact;
  for (const json& run : document["runs"]) {
    const std::string name = run["case"];
    CAPTURE(name);
    double peak = 1, resident = 1, reserved = 1;
    const json& workload = run["workload"];
    const models::ModelSpec model = model_of(workload["model"]);
    if (unplanned.contains(model.model_type)) {
      CHECK(!model.decoder.has_value());
      ++others;
      continue;
    }
    try {
      const DryPlan dry = plan_dry_run(workload, model);
      const planner::Reserved& planned = dry.planned;
      exact.count(planned, run);
      CHECK(dry.managed.value() == run.value("managed_bytes", std::int64_t{0}));
      peak = std::abs(error(planned.allocated, run["peak_bytes"]));
      reserved = std::abs(error(planned.reserved, run["reserved_bytes"]));
      resident = std::abs(error(planned.resident, run["resident_bytes"]));
    } catch (const Error& refused) {
      CHECK(refused.kind() == ErrorKind::unsupported);
    }
    const bool within = peak <= 0.001 && resident <= 0.002 && reserved <= 0.06;
    CHECK_MESSAGE(within != known.contains(name), "peak ", 100 * peak, " %, resident ",
                  100 * resident, " %, reserved ", 100 * reserved, " %");
    ++runs;
    if (!within) continue;
    worst_peak = std::max(worst_peak, peak);
    worst_reserved = std::max(worst_reserved, reserved);
  }
  const std::size_t good = runs - known.size();
  MESSAGE(good << " of " << runs << " full-size runs: largest error of the peak "
               << 100 * worst_peak << " %, of reserved bytes " << 100 * worst_reserved << " %; "
               << others << " of families without a step program");
  CHECK(runs >= least);
  check_to_the_byte(file, exact);
}

std::vector<double> drawn_errors(const std::string& file, double most) {
  const json document = json::parse(std::ifstream(PLIMSOLL_GOLDEN "/" + file));
  std::vector<double> errors;
  ToTheByte exact;
  for (const json& run : document["runs"]) {
    const std::string name = run["case"];
    CAPTURE(name);
    const json& workload = run["workload"];
    const planner::Reserved planned = plan_dry_run(workload, model_of(workload["model"])).planned;
    exact.count(planned, run);
    errors.push_back(std::abs(error(planned.allocated, run["peak_bytes"])));
    CHECK(errors.back() < most);
  }
  std::ranges::sort(errors);
  check_to_the_byte(file, exact);
  return errors;
}

void check_host(const std::string& file, double mistaken) {
  const json document = json::parse(std::ifstream(PLIMSOLL_GOLDEN "/" + file));
  for (const json& run : document["runs"]) {
    const std::string name = run["case"];
    CAPTURE(name);
    const auto plan = plan_dry_run(run["workload"], model_of(run["workload"]["model"]));
    const planner::HostMemory& host = plan.host;
    const std::int64_t table = plan.bitsandbytes ? kTableOfCodes : 0;
    const std::int64_t pinned = run["host"]["pinned_bytes"],
                       managed = run.value("managed_bytes", std::int64_t{0}),
                       pageable = run["host"]["pageable_bytes"].get<std::int64_t>() - managed;
    CHECK(static_cast<double>(pinned - host.pinned.value()) >=
          -mistaken * static_cast<double>(pinned));
    CHECK(pinned - host.pinned.value() <= std::max<std::int64_t>(16 * 1024, pinned / 1024));
    CHECK(host.pageable.value() + table >= pageable);
    CHECK(host.pageable.value() - pageable <= 2 * 1024 * 200);
  }
}

}  // namespace plimsoll::tests
