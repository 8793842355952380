// ZeRO-Infinity's offloading to files: planned against the real engine, on the device, on the host
// and in the files.
//
// tests/golden/deepspeed_nvme.json: as deepspeed_offload.json, with a stand-in of DeepSpeed's
// asynchronous files (tools/oracle/nvme_files.py), whose locked buffers are counted apart from
// PyTorch's pinned memory. What the engine refuses is there with its message.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/planner/deepspeed_run.h"

using namespace plimsoll;
using nlohmann::json;

namespace {

// What the plan says of a run that the engine refuses; "" where it plans it.
std::string refusal(const json& run) {
  try {
    (void)tests::plan_run(run);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return error.what();
  }
  return "";
}

// DeepSpeed's message without the numbers of its own identifiers.
std::string said(const json& run) {
  const std::string text = run["refused"];
  const std::size_t id = text.find("already assigned");
  return id == std::string::npos ? text : "already been assigned";
}

void check_run(const json& run, tests::RunErrors& most, std::size_t& exact) {
  const tests::Planned planned = tests::plan_run(run);
  const tests::RunErrors error = tests::errors_of(run, planned);
  const json& host = run["host"];
  // Numbers that PyTorch itself pins for a moment: a byte to 13.
  const std::int64_t pinned =
      host["pinned_bytes"].get<std::int64_t>() + host["locked_bytes"].get<std::int64_t>();
  CHECK(pinned - planned.host.pinned.value() >= 0);
  CHECK(pinned - planned.host.pinned.value() <= 64);
  CHECK(planned.host.pageable.value() == host["pageable_bytes"]);
  CHECK(planned.host.nvme.value() == host["nvme_bytes"]);
  MESSAGE(run["case"].get<std::string>()
          << ": peak " << 100 * error.peak << " %, reserved " << 100 * error.reserved << " %");
  most.peak = std::max(most.peak, std::abs(error.peak));
  most.resident = std::max(most.resident, std::abs(error.resident));
  most.reserved = std::max(most.reserved, std::abs(error.reserved));
  exact += std::abs(error.peak) <= 0.001;
}

struct Expected {
  std::size_t planned, exact;  // runs; peaks within 0.1 %
  double peak, reserved;  // largest errors
};

void check_file(const std::string& file, const Expected& expected) {
  const json document = json::parse(std::ifstream(PLIMSOLL_GOLDEN "/" + file));
  tests::RunErrors most;
  std::size_t exact = 0, refused = 0, planned = 0;
  for (const json& run : document["runs"]) {
    const std::string name = run["case"];
    CAPTURE(name);
    if (!run.contains("refused")) {
      CHECK(refusal(run) == "");
      if (refusal(run).empty()) check_run(run, most, exact), ++planned;
      continue;
    }
    ++refused;
    const std::string message = refusal(run);
    CAPTURE(message);
    CHECK_FALSE(message.empty());
    CHECK(message.find(said(run)) != std::string::npos);
  }
  MESSAGE(file << ": " << exact << " of " << planned << " peaks within 0.1 %, " << refused
               << " refused; largest errors " << 100 * most.peak << ", " << 100 * most.resident
               << ", " << 100 * most.reserved << " %");
  CHECK(planned == expected.planned);
  CHECK(exact == expected.exact);
  CHECK(most.peak <= expected.peak);
  CHECK(most.resident <= 0.00001);
  CHECK(most.reserved <= expected.reserved);
}

}  // namespace

TEST_CASE("ZeRO-Infinity is what the real engine allocates, on the device, the host and in files") {
  check_file("deepspeed_nvme.json", {41, 38, 0.032, 0.22});
}

// Peaks that are off are those of settings of ZeRO-3's gathers that are planned as levels, whatever
// is offloaded and wherever to (planner/stacks/deepspeed/README.md).
TEST_CASE("so are runs that were drawn when those had been planned") {
  check_file("deepspeed_nvme_draw.json", {17, 8, 0.102, 0.44});
}
