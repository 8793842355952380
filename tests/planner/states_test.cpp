#include <doctest/doctest.h>

#include "planner/plan.h"

using namespace plimsoll;

TEST_CASE("--params reproduces table 1 of the ZeRO paper") {
  // 7.5e9 parameters on 64 ranks: 16, 4 + 12/64, 2 + 14/64 and 16/64 bytes each.
  const std::int64_t expected[] = {120'000'000'000, 31'406'250'000, 16'640'625'000, 1'875'000'000};
  planner::Question question;
  question.strategy.precision = models::Precision::fp16_mixed;
  question.strategy.gpus = 64;
  for (int zero = 0; zero <= 3; ++zero) {
    question.strategy.data.zero = zero;
    CHECK(planner::plan_states(Count(7'500'000'000), question).states.total() ==
          Bytes(expected[zero]));
  }
}
