// gpt2: 50,257 logits of each token. 8 x 1024 tokens in fp32 are 1,646,821,376 bytes, 1570.53 MiB,
// which the allocator asks the driver for as 1572.
#include "planner/memory/failed_allocation.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "models/base/error.h"
#include "models/gpu_catalog.h"
#include "models/model_catalog.h"

using namespace plimsoll;
using planner::FailedAllocation;
using planner::FailedRequest;

namespace {

constexpr Bytes kLogits(8LL * 1024 * 50257 * 4);

struct Asked {
  models::ModelSpec model = models::catalog_model("gpt2");
  planner::Question question;
  Asked() {
    question.cluster.gpu = models::find_gpu("h100-sxm-80gb");
    question.batch = {.seq_len = 1024, .micro_batch = 8};
    question.strategy.precision = models::Precision::fp32;
    question.remedies = false;
    question.model = &model;
  }
  FailedAllocation find(const FailedRequest& request) const {
    return planner::find_failed_allocation(question, request);
  }
};

}  // namespace

TEST_CASE("a request is found by its size after rounding") {
  const FailedAllocation failed = Asked().find({.printed = 1572_MiB, .margin = Bytes(5243)});
  REQUIRE_FALSE(failed.candidates.empty());
  for (const planner::FailedCandidate& c : failed.candidates) {
    CHECK(c.printed == 1572_MiB);
    CHECK(c.tensor.bytes >= kLogits);
    CHECK(c.tensor.bytes < kLogits + 512_B);
  }
  CHECK(std::ranges::any_of(failed.candidates, [](const auto& c) {
    return c.tensor.category == "logits" && c.at.phase == "forward";
  }));
  // By the asynchronous backend a size is as it was asked for.
  CHECK(Asked()
            .find({.printed = 1572_MiB, .margin = Bytes(5243), .rounded = false})
            .candidates.empty());
  CHECK_FALSE(
      Asked().find({.printed = kLogits, .margin = 0_B, .rounded = false}).candidates.empty());
  CHECK(Asked().find({.printed = 1574_MiB, .margin = Bytes(5243)}).candidates.empty());
}

TEST_CASE("of requests of one size the one comes first at which the plan has as much allocated") {
  Asked asked;
  const FailedAllocation all = asked.find({.printed = 1572_MiB, .margin = Bytes(5243)});
  REQUIRE(all.candidates.size() >= 2);
  for (const planner::FailedCandidate& expected : all.candidates) {
    const FailedAllocation failed = asked.find(
        {.printed = 1572_MiB, .margin = Bytes(5243), .allocated = expected.at.allocated});
    CHECK(failed.candidates.front().at.allocated == expected.at.allocated);
    CHECK(reports::sum(failed.lived) > 0_B);
    // In a step's order: nothing that lives beside it is larger than all that is allocated.
    for (const reports::TensorLine& line : failed.largest)
      CHECK(line.bytes <= reports::sum(failed.lived));
  }
  const FailedAllocation failed =
      asked.find({.printed = 1572_MiB, .margin = Bytes(5243), .allocated = 900_GiB});
  CHECK_FALSE(planner::agrees(failed.candidates.front().at.allocated, 900_GiB));
}

TEST_CASE("small sizes are classes: what is listed is some of many") {
  const FailedAllocation failed = Asked().find({.printed = 2_MiB, .margin = Bytes(5243)});
  CHECK(failed.candidates.size() == 6);
  CHECK(failed.further > 0);
  for (const planner::FailedCandidate& c : failed.candidates) CHECK(c.tensor.bytes <= 1_MiB);
}

TEST_CASE("with the room that there was the plan's own first refusal is named") {
  Asked asked;
  const Bytes needed = planner::plan(asked.question).reserved;
  CHECK_FALSE(asked.find({.printed = 2_MiB, .margin = 0_B, .room = needed}).refused);
  const FailedAllocation failed = asked.find({.printed = 2_MiB, .margin = 0_B, .room = 1_GiB});
  REQUIRE(failed.refused);
  CHECK(failed.refused->first_step);
  // Its segment was the one that was too much.
  CHECK(failed.refused->at.allocated + failed.refused->tensor.bytes <= needed);
  CHECK(failed.refused->at.allocated <= 1_GiB);
}

TEST_CASE("a stack whose allocator prints no such message is refused by name") {
  Asked asked;
  asked.question.strategy.stack = models::Stack::plimsoll;
  CHECK_THROWS_AS(asked.find({.printed = 2_MiB, .margin = 0_B}), Error);
}

// Llama 3.2 1B: 128,256 logits of each token, 8 x 1024 x 128,256 x 4 bytes are 4008 MiB. The first
// layer's input, which the embedding makes before all else, is kept to the end of the backward.
TEST_CASE("what lives beside a request comes to what the plan has allocated then") {
  Asked asked;
  asked.model = models::catalog_model("llama-3.2-1b");
  const FailedRequest request{.printed = 4008_MiB, .margin = Bytes(5243)};
  const FailedAllocation all = asked.find(request);
  REQUIRE(all.candidates.size() >= 2);
  for (const planner::FailedCandidate& expected : all.candidates) {
    FailedRequest at = request;
    at.allocated = expected.at.allocated;
    const FailedAllocation failed = asked.find(at);
    const Bytes beside = failed.candidates.front().at.allocated - reports::sum(failed.lived);
    CAPTURE(expected.tensor.name);
    CHECK(beside >= 0_B);
    CHECK(beside < 1_MiB);
  }
}
