// What Transformers' modules do otherwise under DeepSpeed's engine: rows that hold padding or
// several samples, and releases before the one that is planned where none is said.
//
// tests/golden/deepspeed_rows.json and deepspeed_releases.json: as deepspeed_runs.json, of
// tools/oracle/deepspeed_rows_cases.json and deepspeed_releases_cases.json; the others, _draw: runs
// that were drawn before any of this was planned.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/planner/deepspeed_found.h"

using namespace plimsoll;
using tests::deepspeed_runs;
using tests::Found;
using tests::found_of;

TEST_CASE("rows that hold padding or several samples under the engine") {
  const Found chosen = found_of(deepspeed_runs("/deepspeed_rows.json"), false, 0.000006, 0.002);
  CHECK(chosen.runs == 12);
  CHECK(chosen.exact == 10);  // of the flash_attn package's starts, 128 bytes
  CHECK(found_of(deepspeed_runs("/deepspeed_rows.json"), true, 0.000004, 0.02).runs == 3);
  const Found drawn = found_of(deepspeed_runs("/deepspeed_rows_draw.json"), false, 0.000001, 0.023);
  CHECK(drawn.runs == 10);
  CHECK(drawn.exact == drawn.runs);
  // draw-13, 8B trained whole with two micro-batches: 0.4 % too low.
  CHECK(found_of(deepspeed_runs("/deepspeed_rows_draw.json"), true, 0.0041, 0.099).runs == 5);
}

// GPT-2's layers have causal masks there, in 88 bytes of rows that are rounded otherwise.
TEST_CASE("Transformers 4.57 under the engine") {
  const Found chosen = found_of(deepspeed_runs("/deepspeed_releases.json"), false, 0.000002, 0.009);
  CHECK(chosen.runs == 15);
  CHECK(chosen.exact == chosen.runs);
  const Found drawn =
      found_of(deepspeed_runs("/deepspeed_releases_draw.json"), false, 0.000002, 0.012);
  CHECK(drawn.runs == 14);
  CHECK(drawn.exact == 11);
}

// tests/golden/deepspeed_peft.json and _draw: of tools/oracle/deepspeed_peft_cases.json and _draw.
TEST_CASE("trained copies, several adapters, IA3 and prompts under the engine") {
  const Found chosen = found_of(deepspeed_runs("/deepspeed_peft.json"), false, 0.000001, 0.011);
  CHECK(chosen.runs == 17);
  CHECK(chosen.exact == chosen.runs);
  const Found drawn = found_of(deepspeed_runs("/deepspeed_peft_draw.json"), false, 0.000001, 0.027);
  CHECK(drawn.runs == 6);
  CHECK(drawn.exact == drawn.runs);
}
