// Whether a setting fits is asked with fewer replays than a plan takes: the answer is the plan's.
#include <doctest/doctest.h>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "planner/memory/reserved.h"
#include "planner/search/axes.h"
#include "planner/search/search.h"
#include "tests/sanitized.h"

using namespace plimsoll;
using namespace plimsoll::planner;
using namespace plimsoll::planner::search;

// Cards from 8 % too small to 8 % larger than what a setting reserves: around what fits, or would
// run only with segments given back, or not at all.
TEST_CASE("around its limit a setting fits where its plan does") {
  std::int64_t fit = 0, not_fit = 0;
  for (const char* name : {"smollm2-135m", "qwen2-0.5b"}) {
    const models::ModelSpec model = models::catalog_model(name);
    Scope scope;
    scope.base.model = &model;
    scope.base.cluster.gpu = models::find_gpu("a100-40gb");
    scope.base.strategy.gpus = scope.gpus = 2;
    scope.base.batch = {.seq_len = 1024, .micro_batch = 4};
    const std::vector<Setting> all = families(scope);
    for (std::size_t f = 0; f < all.size(); f += tests::stride(53)) {
      Setting x = all[f];
      x.batch = scope.base.batch;
      scope.base.cluster.memory.reset();
      reports::Plan wide;
      try {
        wide = plan_of(scope, x);
      } catch (const Error&) {
        continue;  // refused by its stack
      }
      for (std::int64_t permille = 920; permille <= 1080; permille += 30) {
        scope.base.cluster.memory = Bytes(wide.device.value() / 1000 * permille);
        for (const Overheads overheads : {Overheads::typical, Overheads::high_end}) {
          scope.overheads = overheads;
          const Space space(scope);
          CAPTURE(options_of(x));
          CAPTURE(permille);
          Replays replays;
          const Fit found = search::fit(scope, space, x, replays);
          const bool answer = found.fits;
          const reports::Plan plan = plan_of(scope, x);
          REQUIRE(answer == fits(scope, plan));
          // Planned with the replays that said so, it is the same plan.
          const reports::Plan again = plan_of(scope, x, replays);
          REQUIRE(again.reserved == plan.reserved);
          REQUIRE(again.peak == plan.peak);
          if (answer) REQUIRE(found.peak == plan.peak);
          REQUIRE(again.resident == plan.resident);
          REQUIRE(again.fits == plan.fits);
          REQUIRE(again.high_end.has_value() == plan.high_end.has_value());
          if (plan.high_end) REQUIRE(again.high_end->reserved == plan.high_end->reserved);
          ++(answer ? fit : not_fit);
        }
      }
    }
  }
  CHECK(fit > tests::draws(100));
  CHECK(not_fit > tests::draws(100));
}
