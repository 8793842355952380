// What is said of each level where ranks do not say the same, and at the ends of what is allowed.
#include <doctest/doctest.h>

#include "reports/comparison.h"
#include "tests/reports/made_up_comparison.h"

using namespace plimsoll;
using namespace plimsoll::reports;
using Said = Level::Verdict;

namespace {

// On GPUs: 1536 are reserved and 100 expected outside of the allocator.
Comparison on_gpus(std::int64_t rank_0, std::int64_t rank_1, const Prediction& p = prediction()) {
  Measurement m = measurement();
  m.kind = "gpu";
  m.ranks[0].device = Bytes(rank_0);
  m.ranks[1].device = Bytes(rank_1);
  return compare(p, m);
}

// Peaks of an estimated stack, which predicts 1,130.
Comparison estimated(std::int64_t rank_0, std::int64_t rank_1, double tolerance = kTolerance) {
  Measurement m = measurement();
  m.ranks[0].peak = Bytes(rank_0);
  m.ranks[1].peak = Bytes(rank_1);
  return compare(prediction("pytorch"), m, tolerance);
}

}  // namespace

TEST_CASE("of what is unaccounted for the rank farthest from the plan is told, with its sign") {
  CHECK(on_gpus(1600, 1700).device.text == "unaccounted +64 B; the plan gives no range");
  CHECK(on_gpus(1700, 1600).device.text == "unaccounted +64 B; the plan gives no range");
  CHECK(on_gpus(1536, 1700).device.text == "unaccounted -100 B; the plan gives no range");
  CHECK(on_gpus(1700, 1536).device.text == "unaccounted -100 B; the plan gives no range");
  CHECK(on_gpus(1636, 1636).device.text == "unaccounted 0 B; the plan gives no range");
  CHECK(on_gpus(1'000'000, 1636).device.text == "unaccounted +998,364 B; the plan gives no range");
}

TEST_CASE("the ends of the plan's range are inside of it, and one rank outside is enough") {
  Prediction p = prediction();
  p.range_low = 1600_B;
  p.range_high = 1700_B;
  CHECK(on_gpus(1600, 1700, p).device.verdict == Said::within);
  CHECK(on_gpus(1700, 1600, p).agrees);
  for (const auto& [rank_0, rank_1] : {std::pair(1599, 1650), std::pair(1650, 1599),
                                       std::pair(1701, 1650), std::pair(1650, 1701)}) {
    const Comparison c = on_gpus(rank_0, rank_1, p);
    CHECK(c.device.verdict == Said::differs);
    CHECK(c.device.text.ends_with(" B, outside of the plan's range"));
    CHECK(!c.agrees);
  }
  Measurement m = measurement();
  m.kind = "gpu";
  CHECK(compare(p, m).device.text == "not measured");
  CHECK(compare(p, m).device.verdict == Said::not_compared);
}

// 1130 · 1.05 = 1186.5, · 0.95 = 1073.5.
TEST_CASE("of an estimate the worst rank counts, to either side") {
  CHECK(estimated(1130, 1130).memory.verdict == Said::exact);
  CHECK(estimated(1130, 1130).memory.text == "+0.00 % from the prediction, tolerance 5 %");
  CHECK(estimated(1140, 1100).memory.text == "-2.65 % from the prediction, tolerance 5 %");
  CHECK(estimated(1100, 1140).memory.text == "-2.65 % from the prediction, tolerance 5 %");
  CHECK(estimated(1186, 1074).memory.verdict == Said::within);
  CHECK(estimated(1187, 1130).first_difference() ==
        "rank 0, peak: 1,130 B predicted, 1,187 B measured");
  CHECK(estimated(1130, 1073).first_difference() ==
        "rank 1, peak: 1,130 B predicted, 1,073 B measured");
  // 113 of 1130 are a tenth: as far as is allowed, and not beyond.
  CHECK(estimated(1243, 1130, 0.1).agrees);
  CHECK_FALSE(estimated(1244, 1130, 0.1).agrees);
  CHECK(estimated(1130, 1140).shown == 1);
  CHECK(estimated(1140, 1130).shown == 0);
  CHECK(estimated(1130, 1130).shown == 0);
}

TEST_CASE("reserved bytes are explained where the beginning reached exactly them, on every rank") {
  const auto reserved = [](std::optional<Bytes> initial_0, std::optional<Bytes> initial_1,
                           std::int64_t measured_1 = 1792) {
    Measurement m = measurement();
    m.ranks[0].reserved = 1792_B;
    m.ranks[1].reserved = Bytes(measured_1);
    m.ranks[0].initial_reserved = initial_0;
    m.ranks[1].initial_reserved = initial_1;
    return compare(prediction(), m);
  };
  CHECK(reserved(1792_B, 1792_B).reserved.verdict == Said::explained);
  CHECK(reserved(1792_B, 1536_B).reserved.verdict == Said::differs);
  CHECK(reserved(1792_B, 1536_B).reserved.text == "rank 0: +256 B, reached before the first step");
  CHECK(reserved(1792_B, 1536_B).first_difference() ==
        "rank 1, reserved: 1,536 B predicted, 1,792 B measured");
  CHECK(reserved(1536_B, 1792_B).reserved.text == "rank 0: +256 B");
  // Less than planned is explained by nothing.
  CHECK(reserved(1792_B, 1280_B, 1280).reserved.verdict == Said::differs);
  CHECK(reserved(1792_B, {}, 1536).reserved.verdict == Said::explained);
  CHECK(compare(prediction(), measurement()).reserved.text == "on each of 2 ranks");
  Measurement m = measurement();
  m.ranks[0].reserved = 1792_B;
  m.ranks[0].peak = 1131_B;
  CHECK(compare(prediction(), m).reserved.text == "rank 0: +256 B, follows from the tensors");
  Prediction p = prediction();
  p.reserved.reset();
  CHECK(compare(p, measurement()).reserved.text == "not measured");
  CHECK(compare(p, measurement()).reserved.verdict == Said::not_compared);
}

TEST_CASE("ranks of another kind than the first have a peak of their own, and no more") {
  Prediction p = prediction();
  p.step.reset();
  p.kinds = {{.rank = 0, .count = 1, .peak = 1130_B, .at_peak = kAtPeak, .states = kStates},
             {.rank = 1, .count = 1, .peak = 1130_B, .at_peak = kAtPeak, .states = kStates}};
  Measurement m = measurement();
  m.ranks[1].resident = 900_B;
  m.ranks[1].reserved = 1024_B;
  CHECK(compare(p, m).agrees);
  m.ranks[1].peak = 1129_B;
  CHECK(compare(p, m).first_difference() == "rank 1, peak: 1,130 B predicted, 1,129 B measured");
  CHECK(compare(p, m).memory.text == "1 difference");
  m.ranks[0].resident = 900_B;
  CHECK(compare(p, m).first_difference() ==
        "rank 0, between steps: 1,000 B predicted, 900 B measured");
  CHECK(compare(p, m).memory.text == "2 differences");
}

TEST_CASE("every state has its figure, and a rank that nobody predicted has none") {
  Measurement m = measurement();
  m.ranks[1].states->gradients = 4_B;
  m.ranks[1].states->optimizer = 8_B;
  const Comparison c = compare(prediction(), m);
  REQUIRE(c.differences.size() == 2);
  CHECK(c.differences[0].text() == "rank 1, states: gradients: 0 B predicted, 4 B measured");
  CHECK(c.differences[1].text() == "rank 1, states: optimizer: 0 B predicted, 8 B measured");
  CHECK(c.shown == 1);
  m = measurement();
  m.ranks.push_back(m.ranks[1]);
  m.ranks[2].rank = 2;
  m.ranks[2].peak = 9_B;
  CHECK(compare(prediction(), m).agrees);
  CHECK(compare(prediction(), m).ranks.size() == 2);
  for (const std::string& note : compare(prediction("pytorch"), m).notes)
    CHECK(note.find("ranks are measured") == std::string::npos);
}

TEST_CASE("time is compared where both have it") {
  const auto said = [](std::optional<double> predicted, std::optional<double> measured) {
    Prediction p = prediction();
    p.step_seconds = predicted;
    Measurement m = measurement();
    m.step_seconds = measured;
    return compare(p, m).time.text;
  };
  CHECK(said(2, 1) == "2 s predicted, 1 s measured (-50.0 %)");
  CHECK(said(2, 0) == "not measured");
  CHECK(said(2, {}) == "not measured");
  CHECK(said({}, 2) == "not predicted");
}

TEST_CASE("a run that ended for want of memory says what the plan knew") {
  const auto said = [](std::optional<bool> fits) {
    Prediction p = prediction();
    p.fits = fits;
    Measurement m = measurement();
    m.outcome = "out_of_memory";
    const Comparison c = compare(p, m);
    CHECK(c.outcome == "out_of_memory");
    CHECK((c.memory.verdict == Said::within) == (fits && !*fits));
    return c.memory.text;
  };
  const std::string begin = "the run ended for want of memory, and the plan ";
  CHECK(said(false) == begin + "does not fit");
  CHECK(said(true) == begin + "fits");
  CHECK(said({}) == begin + "knows no capacity");
}
