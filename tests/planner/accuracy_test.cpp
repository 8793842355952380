// The estimate of time against published runs.
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>

#include "tests/planner/throughput_rows.h"

using namespace plimsoll;

TEST_CASE("published throughput out of sample is met within 10 % by the median") {
  const tests::ThroughputRows all = tests::throughput_rows();
  std::vector<const tests::ThroughputRow*> judged;
  for (const tests::ThroughputRow& row : all.rows)
    if (!row.in_sample) judged.push_back(&row);
  CHECK(judged.size() == 153);
  CHECK(tests::median_error(judged) <= 0.10);
}

TEST_CASE("reports/accuracy.md is what the accuracy program writes") {
  std::ifstream file(PLIMSOLL_GOLDEN "/../../reports/accuracy.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const bool current = page == tests::accuracy_page(tests::throughput_rows());
  CHECK_MESSAGE(current, "build/tests/planner/accuracy > reports/accuracy.md writes it anew");
}
