// Liger's kernels under DeepSpeed's engine: planned steps against both packages together.
//
// tests/golden/deepspeed_liger.json: chosen runs; deepspeed_liger_draw.json: runs that were drawn
// when these had been planned (tools/oracle/deepspeed_measure.py). Recorded is the third step.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/planner/deepspeed_run.h"

using namespace plimsoll;
using nlohmann::json;
using tests::plan_run;
using tests::Planned;

namespace {

json runs_of(const char* file) {
  return json::parse(std::ifstream(PLIMSOLL_GOLDEN + std::string(file)))["runs"];
}

struct Errors {
  int exact = 0, others = 0;  // to 64 bytes, and not
  double worst = 0;  // of the peak, of those that are not named
};

// Resident bytes and peaks, where `named` is not asked to be exact.
Errors errors_of(const json& runs, bool stage3, const std::string& named = "") {
  Errors out;
  for (const json& run : runs) {
    if ((run["workload"]["strategy"]["zero"] == 3) != stage3) continue;
    const std::string name = run["case"];
    CAPTURE(name);
    const Planned planned = plan_run(run);
    const double resident = planned.peak.resident.real() / run["resident_bytes"].get<double>() - 1;
    CHECK(std::abs(resident) <= 0.00001);
    const double peak = planned.peak.bytes.real() - run["peak_bytes"].get<double>();
    if (name == named) continue;
    ++(std::abs(peak) <= 64 ? out.exact : out.others);
    out.worst = std::max(out.worst, std::abs(peak) / run["peak_bytes"].get<double>());
  }
  return out;
}

Planned planned_case(const char* name) {
  for (const json& run : runs_of("/deepspeed_liger.json"))
    if (run["case"] == name) return plan_run(run);
  FAIL("no run ", name);
  return {};
}

}  // namespace

TEST_CASE("Liger's kernels under ZeRO-0 to 2 peak where they were planned to, byte for byte") {
  // gemma-2b's peak is in the step, whose norm makes a value for each parameter.
  const Errors chosen = errors_of(runs_of("/deepspeed_liger.json"), false);
  CHECK(chosen.exact >= 26);
  CHECK(chosen.others <= 1);
  CHECK(chosen.worst <= 0.000001);
  const Errors drawn = errors_of(runs_of("/deepspeed_liger_draw.json"), false);
  CHECK(drawn.exact >= 20);
  CHECK(drawn.others == 0);
}

// What is gathered is planned as levels, each parameter a block of its own; not planned are the
// flat buffers of several that are gathered together.
TEST_CASE("Liger's kernels under ZeRO-3 peak within what its prefetch leaves open") {
  // A model whose layers have all been gathered, and are let go before its bucket is reduced.
  const Errors chosen =
      errors_of(runs_of("/deepspeed_liger.json"), true, "liger-gemma-3-1b-zero3-full");
  CHECK(chosen.exact >= 5);
  CHECK(chosen.worst <= 0.014);
  const Errors drawn = errors_of(runs_of("/deepspeed_liger_draw.json"), true, "");
  CHECK(drawn.worst <= 0.011);
  CHECK(drawn.exact + drawn.others >= 9);
}

// Llama 3.1 70B: the head has 128256 · 8192 = 1,050,673,152 parameters, more than
// stage3_max_live_parameters, 2,101,346,304 bytes in bf16. They are there from the first gather of
// the forward to the end of the backward; a recomputed layer's 855,638,016 are there beside them.
TEST_CASE("ZeRO-3 gathers the head's weight for a whole micro-batch where Liger's loss reads it") {
  const Planned planned = planned_case("liger-llama-3.1-70b-zero3-full");
  int heads = 0, layers = 0;
  for (const models::TensorDecl& tensor : planned.program.tensors) {
    if (std::string_view(tensor.name) != "zero3.gathered") continue;
    heads += tensor.bytes == Bytes(2'101'346'304);
    layers += tensor.bytes == Bytes(2 * 855'638'016LL);
  }
  CHECK(heads == 1);
  CHECK(layers >= 1);
}
