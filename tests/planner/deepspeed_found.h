// Runs of tools/oracle/deepspeed_measure.py against their plans, many at a time.
#pragma once

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/planner/deepspeed_run.h"

namespace plimsoll::tests {

inline json deepspeed_runs(const char* file) {
  return json::parse(std::ifstream(PLIMSOLL_GOLDEN + std::string(file)))["runs"];
}

struct Found {
  std::size_t exact = 0, runs = 0;  // peaks to 64 bytes
};

// `peak`, `reserved`: how far off, as parts of the run's, any of them may be.
inline Found found_of(const json& runs, bool stage3, double peak, double reserved) {
  Found out;
  for (const json& run : runs) {
    if ((run["workload"]["strategy"]["zero"] == 3) != stage3) continue;
    const std::string name = run["case"];
    CAPTURE(name);
    const Planned planned = plan_run(run);
    const RunErrors error = errors_of(run, planned);
    CHECK(std::abs(error.resident) <= 0.000001);
    CHECK(std::abs(error.peak) <= peak);
    CHECK(std::abs(error.reserved) <= reserved);
    CHECK(planned.managed.value() == run.value("managed_bytes", std::int64_t(0)));
    MESSAGE(name << ": peak " << planned.peak.bytes.value() - run["peak_bytes"].get<std::int64_t>()
                 << " B, " << 100 * error.peak << " %, resident " << 100 * error.resident
                 << " %, reserved " << 100 * error.reserved << " %");
    out.exact += std::abs(planned.peak.bytes.value() - run["peak_bytes"].get<std::int64_t>()) <= 64;
    ++out.runs;
  }
  return out;
}

}  // namespace plimsoll::tests
