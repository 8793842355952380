// The estimate of time against published runs.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "planner/search/scope.h"
#include "tests/planner/throughput_rows.h"

using namespace plimsoll;

TEST_CASE("published throughput out of sample is met within 10 % by the median") {
  const tests::ThroughputRows all = tests::throughput_rows();
  std::vector<const tests::ThroughputRow*> judged;
  for (const tests::ThroughputRow& row : all.rows)
    if (!row.in_sample) judged.push_back(&row);
  CHECK(judged.size() == 217);
  CHECK(tests::median_error(judged) <= 0.10);
}

// Wherever the same program was published on few and on many GPUs.
TEST_CASE("what is lost on many GPUs is what published runs lost, within 4 points of 100") {
  double sum = 0;
  int judged = 0;
  for (const tests::ScalingRow& row : tests::throughput_rows().scaling) {
    CAPTURE(row.what);
    CHECK(row.estimated() < 1);
    CHECK(std::abs(row.estimated() - row.published()) <= 0.04);
    if (row.in_sample()) continue;
    sum += row.estimated() - row.published();
    ++judged;
  }
  CHECK(judged == 7);
  CHECK(std::abs(sum / judged) < 0.015);
}

TEST_CASE("what recommend treats as equal is what the estimate cannot tell apart") {
  using planner::search::kSameKindMargin, planner::search::kTieMargin;
  const auto at = [](const std::vector<double>& errors, std::size_t twentieths) {
    return errors[errors.size() * twentieths / 20];
  };
  const tests::Comparisons pairs = tests::comparisons(tests::throughput_rows());
  REQUIRE(pairs.two_kinds.size() > 100);
  // Nine of ten; until adapters waited for their host five of six were. It was not narrowed since:
  // few of the pairs have two frameworks, whose error it bounds, too.
  CHECK(kTieMargin >= at(pairs.two_kinds, 18));
  CHECK(kTieMargin <= at(pairs.two_kinds, 19));
  CHECK(kTieMargin >= at(pairs.flattery_of_sharding, 18));
  CHECK(kTieMargin <= pairs.flattery_of_sharding.back());
  REQUIRE(pairs.one_kind.size() > 100);
  CHECK(kSameKindMargin >= at(pairs.one_kind, 12));  // two of three
  CHECK(kSameKindMargin <= at(pairs.one_kind, 15));
}

TEST_CASE("the page's sentence about packed bases of Llama-3-8B is what its rows say") {
  int rows = 0;
  double worst = 0;
  for (const tests::ThroughputRow& row : tests::throughput_rows().rows) {
    if (!row.strategy.quantize || row.source != 1 || row.model != "Llama-3-8B") continue;
    ++rows;
    worst = std::max(worst, std::abs(row.error()));
  }
  CHECK(rows == 32);
  CHECK(worst < 0.0515);  // "within 5.1 %"
  CHECK(worst >= 0.0505);
}

TEST_CASE("reports/accuracy.md is what the accuracy program writes") {
  std::ifstream file(PLIMSOLL_GOLDEN "/../../reports/accuracy.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const bool current = page == tests::accuracy_page(tests::throughput_rows());
  CHECK_MESSAGE(current, "build/tests/planner/accuracy > reports/accuracy.md writes it anew");
}
