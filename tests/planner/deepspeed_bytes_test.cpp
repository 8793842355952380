// In how many of the real engine's runs a plan of stack deepspeed has its bytes to the byte: what
// the other tests of it leave open, as a share of all bytes, is no room for a rule to move in.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "planner/memory/reserved.h"
#include "tests/planner/deepspeed_run.h"
#include "tests/planner/to_the_byte.h"

using namespace plimsoll;
using nlohmann::json;

namespace {

// Runs; and of their forwards, backwards and steps where each peaks, and what it leaves. Returns by
// how many bytes a run's peak is off at most.
std::int64_t check_file(const std::string& file, int phase_peaks, int phase_ends) {
  const json document = json::parse(std::ifstream(PLIMSOLL_GOLDEN "/" + file));
  tests::ToTheByte exact;
  int peaks = 0, ends = 0;
  std::int64_t most = 0;
  for (const json& run : document["runs"]) {
    if (run.contains("refused")) continue;  // deepspeed_nvme_test.cpp
    const tests::Planned planned = tests::plan_run(run);
    planner::Reserved found = planner::replay(planned.program, planned.timeline, {}, planned.start);
    found.allocated = planned.peak.bytes;
    found.resident = planned.peak.resident;
    exact.count(found, run);
    const std::int64_t off = found.allocated.value() - run["peak_bytes"].get<std::int64_t>();
    most = std::max(most, std::abs(off));
    for (const auto& [phase, figures] : tests::phases_of(run, planned)) {
      peaks += std::abs(figures.planned_peak - figures.peak) <= 64;  // the loss's scalars
      ends += std::abs(figures.planned_end - figures.end) <= 64;
    }
  }
  CAPTURE(file);
  CHECK(peaks == phase_peaks);
  CHECK(ends == phase_ends);
  tests::check_to_the_byte(file, exact);
  return most;
}

}  // namespace

TEST_CASE("DeepSpeed's chosen runs are planned to the byte, as many as were") {
  check_file("deepspeed_runs.json", 113, 135);
  check_file("deepspeed_lion.json", 28, 34);
  check_file("deepspeed_liger.json", 83, 105);
}

TEST_CASE("so are DeepSpeed's runs with parameters in turn and on the host") {
  check_file("deepspeed_offload.json", 44, 48);
  check_file("deepspeed_round_robin.json", 80, 84);
  check_file("deepspeed_nvme.json", 23, 26);
}

TEST_CASE("so are those of DeepSpeed that were drawn") {
  check_file("deepspeed_draw.json", 96, 93);
  check_file("deepspeed_liger_draw.json", 63, 62);
  check_file("deepspeed_round_robin_draw.json", 40, 44);
  check_file("deepspeed_block_draw.json", 26, 26);
  check_file("deepspeed_nth_draw.json", 10, 9);
  check_file("deepspeed_nvme_draw.json", 2, 5);
}

// Buckets of less than a layer, and of two; of an adapter's A, a layer's last gradient, which waits
// for the next layer's first hook where it is larger.
TEST_CASE("so are steps with small buckets") {
  CHECK(check_file("deepspeed_buckets.json", 72, 67) <= 16);
}
