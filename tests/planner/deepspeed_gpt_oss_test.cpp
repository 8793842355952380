// GPT-OSS inside DeepSpeed's engine: stacked experts whose biases have their hooks behind the
// weights.
//
// tests/golden/deepspeed_gpt_oss.json: as deepspeed_runs.json, of
// tools/oracle/deepspeed_gpt_oss_cases.json.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/planner/deepspeed_run.h"

using namespace plimsoll;
using nlohmann::json;

TEST_CASE("GPT-OSS peaks as in the real engine, at each stage") {
  const json runs = json::parse(std::ifstream(PLIMSOLL_GOLDEN "/deepspeed_gpt_oss.json"))["runs"];
  int exact = 0;
  for (const json& run : runs) {
    const std::string name = run["case"];
    CAPTURE(name);
    const tests::Planned planned = tests::plan_run(run);
    const tests::RunErrors error = tests::errors_of(run, planned);
    const bool shards = run["workload"]["strategy"]["zero"] == 3;
    // At stage 3 one stacked weight of 20B (0.53 GB) is planned at the peak that the engine has let
    // go of, and 1 MiB to 3 MB of the tiny ones is missing: not understood.
    CHECK(std::abs(error.peak) <= (shards ? 0.007 : 1e-7));
    CHECK(std::abs(error.resident) <= (shards ? 0.002 : 1e-6));
    CHECK(std::abs(error.reserved) <= 0.1);
    exact += std::abs(planned.peak.bytes.value() - run["peak_bytes"].get<std::int64_t>()) <= 16;
    MESSAGE(name << ": peak " << 100 * error.peak << " %, reserved " << 100 * error.reserved
                 << " %");
  }
  CHECK(exact == 8);  // stages 0 to 2
}
