// Peak and reserved bytes of LitGPT's own code against torch's own allocator.
#include <doctest/doctest.h>

#include "tests/planner/dry_run_checks.h"

using plimsoll::tests::check_runs;

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

TEST_CASE("so are those of LitGPT's code of April and September 2024, with bitsandbytes 0.42") {
  check_runs("dry_runs_litgpt_0.3.json", {}, 7);
  check_runs("dry_runs_litgpt_0.4.json", {}, 6);
}

TEST_CASE("so are those of its code of 2024 that were drawn when the plan was begun") {
  check_runs("dry_runs_litgpt_0.3_draw.json", {}, 10);
  check_runs("dry_runs_litgpt_0.4_draw.json", {}, 10);
}
