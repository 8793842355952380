// Prefix tuning at full size, as torch's own allocator had it (tools/oracle/dry_runs.py).
#include <doctest/doctest.h>

#include "tests/planner/dry_run_checks.h"

using plimsoll::tests::check_runs;

// Gemma 3's reserves a segment that the plan misses; the unlucky allocator's figure has it.
TEST_CASE(
    "full-size steps of prefixes are planned: keys and values that are learned, of nine families") {
  check_runs("dry_runs_prefix.json", {{"gemma-3-1b-prefix-mlp-fp32", "reserved 11.2 %"}}, 15);
}

// By two seeds: models of eleven families, precision, attention, padding, perceptron, optimizer,
// DDP and ZeRO-1, batch. GPT-2's is off by blocks that were not split: what was requested is exact.
TEST_CASE("so are those that were drawn when the plan was done") {
  check_runs("dry_runs_prefix_draw.json", {{"29-gpt2", "peak 0.153 %"}}, 35);
}
