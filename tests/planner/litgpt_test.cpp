// Peak and reserved bytes of LitGPT's own code against torch's own allocator.
#include <doctest/doctest.h>

#include "tests/planner/dry_run_checks.h"

using plimsoll::tests::check_runs;
using plimsoll::tests::drawn_errors;

TEST_CASE(
    "full-size peaks of LitGPT's own code are within 0.1 %, all parameters or adapters, packed or "
    "not") {
  // As other packed bases: their weights lie in larger blocks that were left while loading.
  check_runs("dry_runs_litgpt.json", {{"llama-3.1-8b-qlora", "peak 0.24 %, resident 0.47 %"}}, 8);
}

TEST_CASE("so are those of LitGPT's code that were drawn when the plan was done") {
  // The packed ones as above. Llama 2 13B's weights lie in other blocks than is planned: each
  // layer's plain modules are made first and replaced (lora.py, Block).
  check_runs("dry_runs_litgpt_draw.json",
             {{"draw-5-llama-3-8b", "peak 0.25 %, resident 0.47 %"},
              {"draw-7-tinyllama-1.1b", "resident 0.24 %"},
              {"draw-9-mistral-7b-v0.2", "peak 0.32 %, resident 0.80 %"},
              {"draw-10-llama-2-13b", "peak 0.19 %, resident 0.26 %"},
              {"draw-12-llama-2-7b", "peak 0.14 %, resident 0.59 %"}},
             14);
}

// What bitsandbytes' contexts hold stays with the logits until the next forward has returned. The
// packed ones miss as above, by the blocks that loading leaves: llama-2-7b-qlora requests
// 13,666,571,300 bytes at its peak, and holds blocks of 13,711,148,032.
TEST_CASE("so are those of LitGPT's code of April and September 2024, with bitsandbytes 0.42") {
  check_runs("dry_runs_litgpt_0.3.json",
             {{"llama-2-7b-qlora", "peak 0.35 %, resident 1.01 %"},
              {"llama-3-8b-qlora", "peak 0.17 %, resident 0.36 %"},
              {"mistral-7b-v0.2-qlora", "peak 0.20 %, resident 0.44 %"}},
             7);
  check_runs("dry_runs_litgpt_0.4.json",
             {{"llama-3.1-8b-qlora", "peak 0.15 %, resident 0.35 %"},
              {"llama-3.2-1b-qlora", "peak 0.17 %, resident 0.41 %, reserved 8.9 %"},
              {"llama-3.2-3b-qlora", "peak 0.20 %, resident 0.53 %, reserved 6.8 %"}},
             6);
}

TEST_CASE("so are those of its code of 2024 that were drawn before the plan was begun") {
  // draw-4: the head and the embedding are stepped one after the other, and torch's loop has a name
  // for what the first was divided by while it makes two of the second.
  check_runs("dry_runs_litgpt_0.3_draw.json",
             {{"draw-1-mistral-7b-v0.1", "peak 0.37 %, resident 0.56 %"},
              {"draw-4-tinyllama-1.1b", "peak 1.40 %"},
              {"draw-6-llama-3.2-1b", "resident 0.24 %, reserved 6.3 %"},
              {"draw-7-llama-2-7b", "peak 0.13 %, resident 0.43 %"}},
             10);
  check_runs("dry_runs_litgpt_0.4_draw.json",
             {{"draw-1-llama-3.1-8b", "peak 0.17 %, resident 0.34 %"},
              {"draw-2-llama-3.2-3b", "peak 0.19 %, resident 0.47 %"},
              {"draw-3-mistral-7b-v0.2", "resident 0.34 %"},
              {"draw-4-llama-3-8b", "peak 0.16 %, resident 0.36 %"},
              {"draw-7-llama-2-13b", "peak 0.20 %"}},
             10);
}

// Adapters' convolutions have groups where the model has as many keys as queries, and not where its
// forward of 2024 only repeats them: Llama 3 8B's peak would be 0.0035 % off, 3.2 3B's 0.066 %.
TEST_CASE("of those the nearest, whose keys are fewer than their queries, are within 0.002 %") {
  CHECK(drawn_errors("dry_runs_litgpt_0.3.json", 0.0036).front() < 2e-5);
  CHECK(drawn_errors("dry_runs_litgpt_0.4.json", 0.0021).front() < 2e-5);
}
