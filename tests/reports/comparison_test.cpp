// A measurement held against its prediction: every verdict, and what is named first.
#include "reports/comparison.h"

#include <doctest/doctest.h>

#include "reports/ledger_join.h"
#include "tests/reports/made_up_comparison.h"

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {

StepLedger& ledger_of(Measurement& m, std::size_t rank = 1) {
  return m.ranks[rank].ledgers[0].ledger;
}

std::string first(const Measurement& m) {
  const Comparison c = compare(prediction(), m);
  CHECK(!c.agrees);
  CHECK(c.memory.verdict == Level::Verdict::differs);
  return c.first_difference();
}

std::string refusal(const Prediction& p, const Measurement& m) {
  try {
    (void)compare(p, m);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return error.message();
  }
  return "";
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("equal ledgers on all ranks agree exactly") {
  const Comparison c = compare(prediction(), measurement());
  CHECK(c.agrees);
  CHECK(c.detailed);
  CHECK(c.first_difference() == "");
  CHECK(c.memory.verdict == Level::Verdict::exact);
  CHECK(c.memory.text == "3 tensors, 3 ops on each of 2 ranks");
  CHECK(c.reserved.verdict == Level::Verdict::exact);
  CHECK(c.device.verdict == Level::Verdict::not_compared);
  CHECK(c.device.text == "not measured: all ranks share the host");
  CHECK(c.time.text == "not predicted");
  CHECK(c.ranks.size() == 2);
}

TEST_CASE("one byte in one tensor of one rank is named, with its op and both sizes") {
  Measurement m = measurement();
  ledger_of(m).tensors[1].bytes = 101_B;
  CHECK(first(m) == "rank 1, x, born op 0 (forward embeddings): 100 B predicted, 101 B measured");
}

TEST_CASE("a tensor that is held too long, or freed too early, is named") {
  Measurement m = measurement();
  ledger_of(m).tensors[1].died = 2;
  ledger_of(m).ops[1].allocated = 1130_B;
  ledger_of(m).ops[2].high_water = 1130_B;
  CHECK(first(m) ==
        "rank 1, x (100 B): dies op 1 (forward layers.0.mlp) predicted, op 2 (backward "
        "layers.0.mlp) measured");
  m = measurement();
  ledger_of(m, 0).tensors[2].died = 1;
  CHECK(first(m) ==
        "rank 0, y (30 B): dies op 2 (backward layers.0.mlp) predicted, op 1 (forward "
        "layers.0.mlp) measured");
}

TEST_CASE("a leak is a tensor that outlives the step") {
  Measurement m = measurement();
  ledger_of(m).tensors[2].died = 3;
  CHECK(first(m) ==
        "rank 1, y (30 B): dies op 2 (backward layers.0.mlp) predicted, after the step measured");
}

TEST_CASE("tensors that only one side has are named, those of one name by their births") {
  Measurement m = measurement();
  // A second y, made in place of nothing by op 0: the y of op 1 still has its partner.
  ledger_of(m).tensors.push_back({"y", "temporaries", 7_B, 0, 0});
  const Comparison c = compare(prediction(), m);
  CHECK(c.differences.size() == 1);
  CHECK(c.first_difference() ==
        "rank 1, y (7 B), born op 0 (forward embeddings): measured, and not predicted");
  m = measurement();
  ledger_of(m).tensors.erase(ledger_of(m).tensors.begin());
  CHECK(first(m) == "rank 1, w (1,000 B), born before the step: predicted, and not measured");
}

TEST_CASE("another birth and another category are named") {
  Measurement m = measurement();
  ledger_of(m).tensors[2].born = 0;
  CHECK(first(m) ==
        "rank 1, y (30 B): born op 1 (forward layers.0.mlp) predicted, op 0 (forward embeddings) "
        "measured");
  m = measurement();
  ledger_of(m).tensors[2].category = "temporaries";
  CHECK(first(m) ==
        "rank 1, y, born op 1 (forward layers.0.mlp): activations predicted, temporaries measured");
}

TEST_CASE("another op is named with what it makes") {
  Measurement m = measurement();
  StepLedger& seen = ledger_of(m, 0);
  seen.ops.insert(seen.ops.begin() + 1, {"layers.0.norm", "forward", 1150_B, 1150_B});
  seen.tensors = {{"w", "parameters", 1000_B, -1, 4},
                  {"n", "activations", 50_B, 1, 3},
                  {"x", "activations", 100_B, 0, 2},
                  {"y", "activations", 30_B, 2, 3}};
  CHECK(first(m) ==
        "rank 0, op 1: forward layers.0.mlp predicted, forward layers.0.norm measured; rank 0, n "
        "(50 B), born op 1 (forward layers.0.norm): measured, and not predicted");
  m = measurement();
  ledger_of(m).ops[2].phase = "recompute";
  CHECK(first(m) ==
        "rank 1, op 2: backward layers.0.mlp predicted, recompute layers.0.mlp measured");
  m = measurement();
  ledger_of(m).ops.pop_back();
  ledger_of(m).tensors[2].died = 2;
  CHECK(has(first(m), "op 2: backward layers.0.mlp predicted, the end of the step measured"));
}

TEST_CASE("high water and boundary of an op are compared beside the tensors") {
  Measurement m = measurement();
  ledger_of(m).ops[1].high_water = 1131_B;
  CHECK(first(m) ==
        "rank 1, high water of op 1 (forward layers.0.mlp): 1,130 B predicted, 1,131 B measured");
  m = measurement();
  ledger_of(m).ops[0].allocated = 1099_B;
  CHECK(first(m) ==
        "rank 1, allocated after op 0 (forward embeddings): 1,100 B predicted, 1,099 B measured");
}

TEST_CASE("the earliest difference comes first, a tensor before the sizes of its op") {
  Measurement m = measurement();
  ledger_of(m, 0).tensors[2].bytes = 31_B;  // op 1
  ledger_of(m, 0).ops[1].high_water = 1131_B;
  ledger_of(m, 1).ops[0].high_water = 1101_B;  // op 0
  const Comparison c = compare(prediction(), m);
  REQUIRE(c.differences.size() == 3);
  CHECK(c.differences[0].rank == 1);
  CHECK(c.differences[1].kind == Difference::Kind::bytes);
  CHECK(c.differences[2].kind == Difference::Kind::high_water);
}

TEST_CASE("every step that was measured counts, those that an overflow skipped too") {
  Measurement m = measurement();
  m.ranks[0].ledgers.push_back({{3}, true, ledger()});
  CHECK(compare(prediction(), m).agrees);
  m.ranks[0].ledgers.back().ledger.ops.pop_back();
  CHECK(has(first(m), "the end of the step measured"));
}

TEST_CASE("a rank that was not measured is named") {
  Measurement m = measurement();
  m.ranks.pop_back();
  CHECK(first(m) == "rank 1: predicted, and not measured");
  m = measurement();
  m.ranks[1].ledgers.clear();
  CHECK(first(m) == "rank 1: predicted, and not measured");
}

TEST_CASE("a figure of a rank that its tensors do not explain is named") {
  Measurement m = measurement();
  (*m.ranks[0].at_peak)[3] = 131_B;
  CHECK(first(m) == "rank 0, activations: 130 B predicted, 131 B measured");
  m = measurement();
  m.ranks[0].states->parameters = 999_B;
  CHECK(first(m) == "rank 0, states: parameters: 1,000 B predicted, 999 B measured");
}

TEST_CASE("reserved bytes are equal, explained by the beginning, or differ") {
  Measurement m = measurement();
  m.ranks[1].reserved = 1792_B;
  Comparison c = compare(prediction(), m);
  CHECK(c.memory.verdict == Level::Verdict::exact);
  CHECK(c.reserved.verdict == Level::Verdict::differs);
  CHECK(!c.agrees);
  CHECK(c.first_difference() == "rank 1, reserved: 1,536 B predicted, 1,792 B measured");
  m.ranks[1].initial_reserved = 1792_B;
  c = compare(prediction(), m);
  CHECK(c.reserved.verdict == Level::Verdict::explained);
  CHECK(c.reserved.text == "rank 1: +256 B, reached before the first step");
  CHECK(c.agrees);
  CHECK(c.first_difference() == "");
}

TEST_CASE("what neither allocator nor plan accounts for on the device is signed") {
  // 1536 are reserved and 100 expected outside: 1700 leave 64, 1600 leave -36.
  Measurement m = measurement();
  m.kind = "gpu";
  m.ranks[0].device = 1700_B;
  Comparison c = compare(prediction(), m);
  CHECK(c.ranks[0].unaccounted == 64_B);
  CHECK(c.device.verdict == Level::Verdict::not_compared);
  CHECK(c.device.text == "unaccounted +64 B; the plan gives no range");
  CHECK(c.agrees);
  Prediction p = prediction();
  p.range_low = 1600_B;
  p.range_high = 1690_B;
  c = compare(p, m);
  CHECK(c.device.verdict == Level::Verdict::differs);
  CHECK(!c.agrees);
  m.ranks[0].device = 1600_B;
  c = compare(p, m);
  CHECK(c.ranks[0].unaccounted == Bytes(-36));
  CHECK(c.device.verdict == Level::Verdict::within);
  CHECK(has(c.device.text, "-36 B"));
}

TEST_CASE("whether the overheads were fitted on this workload is said beside the device") {
  Measurement m = measurement();
  m.kind = "gpu";
  m.ranks[0].device = 1600_B;
  m.environment.driver = "580.95.05";
  Prediction p = prediction();
  p.calibration = models::Calibration{.driver = "580.95.05",
                                      .evidence = "folder",
                                      .fitted_fingerprints = {"another", m.fingerprint}};
  Comparison c = compare(p, m);
  CHECK(c.sample == "in-sample");
  CHECK(c.device.text == "unaccounted -36 B, in-sample; the plan gives no range");
  CHECK(c.notes == std::vector<std::string>{
                       "in-sample: the plan's overheads were fitted on this workload (folder)"});
  p.calibration->fitted_fingerprints = {"another"};
  p.calibration->judged_fingerprints = {m.fingerprint};
  p.calibration->driver = "570.10.01";
  c = compare(p, m);
  CHECK(c.sample == "out-of-sample");
  CHECK(c.notes == std::vector<std::string>{
                       "the plan's range was made to hold this workload's measurement (folder)",
                       "overheads were measured with driver 570.10.01, this run had 580.95.05"});
  p.calibration->judged_fingerprints = {};
  p.calibration->driver = "580.95.05";
  CHECK(compare(p, m).notes.empty());
}

TEST_CASE("time is reported and never decides") {
  Prediction p = prediction();
  p.step_seconds = 2;
  Measurement m = measurement();
  m.step_seconds = 3;
  const Comparison c = compare(p, m);
  CHECK(c.time.text == "2 s predicted, 3 s measured (+50.0 %)");
  CHECK(c.agrees);
}

TEST_CASE("documents without detail are compared per category, and it is said") {
  Prediction p = prediction();
  p.step.reset();
  Comparison c = compare(p, measurement());
  CHECK(c.agrees);
  CHECK(!c.detailed);
  CHECK(c.memory.verdict == Level::Verdict::exact);
  CHECK(c.memory.text == "peak and categories on each of 2 ranks");
  CHECK(has(c.notes.at(0), "prediction.json has no detail"));
  Measurement m = measurement();
  for (MeasuredRank& rank : m.ranks) rank.ledgers.clear();
  (*m.ranks[1].at_peak)[0] = 1001_B;
  c = compare(prediction(), m);
  CHECK(!c.agrees);
  CHECK(has(c.notes.at(0), "measurement.json has no tensors"));
  CHECK(c.first_difference() == "rank 1, parameters: 1,000 B predicted, 1,001 B measured");
}

TEST_CASE("each document that has no detail is named, and none beside it") {
  Prediction p = prediction();
  Measurement m = measurement();
  p.step.reset();
  CHECK(compare(p, m).notes.at(0) ==
        "not compared tensor by tensor: prediction.json has no detail (fit --detail)");
  for (MeasuredRank& rank : m.ranks) rank.ledgers.clear();
  CHECK(compare(p, m).notes.at(0) ==
        "not compared tensor by tensor: prediction.json has no detail (fit --detail), "
        "measurement.json has no tensors");
  CHECK(compare(prediction(), m).notes.at(0) ==
        "not compared tensor by tensor: measurement.json has no tensors");
}

TEST_CASE("a stack that is estimated is held to a tolerance, on the ranks that were measured") {
  const Prediction p = prediction("pytorch");
  Measurement m = measurement();
  m.ranks.pop_back();
  m.ranks[0].ledgers.clear();
  m.ranks[0].peak = 1153_B;  // 1130 · 1.02 = 1152.6
  m.ranks[0].reserved = 1600_B;  // 4.2 % more
  Comparison c = compare(p, m);
  CHECK(c.agrees);
  CHECK(c.memory.verdict == Level::Verdict::within);
  CHECK(c.memory.text == "+2.04 % from the prediction, tolerance 5 %");
  CHECK(c.notes.at(0) == "1 of 2 ranks are measured");
  CHECK(has(c.notes.at(1), "stack pytorch is estimated"));
  c = compare(p, m, 0.03);
  CHECK(!c.agrees);
  CHECK(c.memory.verdict == Level::Verdict::within);
  CHECK(c.reserved.verdict == Level::Verdict::differs);
  CHECK(c.first_difference() == "rank 0, reserved: 1,536 B predicted, 1,600 B measured");
}

TEST_CASE("want of memory agrees with a plan that does not fit") {
  Measurement m = measurement();
  m.outcome = "out_of_memory";
  m.ranks.clear();
  Prediction p = prediction();
  CHECK(!compare(p, m).agrees);
  p.fits = true;
  CHECK(!compare(p, m).agrees);
  p.fits = false;
  CHECK(compare(p, m).agrees);
}

TEST_CASE("other workloads are refused, and the keys that differ are named") {
  Measurement m = measurement();
  m.fingerprint = "00000000000000bb";
  m.workload = R"({"fingerprint": "00000000000000bb", "model": {"config": null, "name": "small"},
      "stack": {"name": "plimsoll", "device": "cpu"}, "strategy": {"world_size": 2, "zero": 2},
      "batch": {"seq_len": 8, "micro_batch": 4}})";
  CHECK(refusal(prediction(), m) ==
        "prediction.json and measurement.json are about different workloads (00000000000000aa and "
        "00000000000000bb): batch.micro_batch (absent predicted, 4 measured), strategy.zero (3 "
        "predicted, 2 measured)");
  m.workload = kWorkload;
  CHECK(has(refusal(prediction(), m), "their keys are equal, so a fingerprint was edited"));
}

TEST_CASE("equal fingerprints over unequal workloads are pointed out") {
  Measurement m = measurement();
  m.workload.replace(m.workload.find("\"zero\": 3"), 9, "\"zero\": 1");
  const Comparison c = compare(prediction(), m);
  CHECK(c.notes.at(0) ==
        "the fingerprints are equal, but not the workloads (one was edited): strategy.zero (3 "
        "predicted, 1 measured)");
}

TEST_CASE("what cannot be compared is refused") {
  Measurement m = measurement();
  m.outcome = "failed";
  m.error = Failure{"communicator", "rank 1: gone", {}};
  CHECK(refusal(prediction(), m) ==
        "measurement.json: the run did not complete (failed: rank 1: gone)");
  Prediction p = prediction();
  p.kinds.clear();
  CHECK(has(refusal(p, measurement()), "predicts model states only"));
}

TEST_CASE("what was not compared does not agree") {
  const auto without = [](auto&& take_away) {
    Measurement m = measurement();
    for (MeasuredRank& rank : m.ranks) rank.ledgers.clear();
    take_away(m.ranks[1]);
    return refusal(prediction(), m);
  };
  const std::string begin = "measurement.json: nothing to compare: rank 1 has no ";
  CHECK(without([](MeasuredRank& rank) { rank.peak.reset(); }) == begin + "peak bytes");
  CHECK(without([](MeasuredRank& rank) { rank.resident.reset(); }) == begin + "resident bytes");
  CHECK(without([](MeasuredRank& rank) { rank.reserved.reset(); }) == begin + "reserved bytes");
  CHECK(without([](MeasuredRank& rank) { rank.at_peak.reset(); }) == begin + "at_peak");
  CHECK(without([](MeasuredRank& rank) { rank.states.reset(); }) == begin + "states");
  CHECK(without([](MeasuredRank&) {}) == "");
  Measurement m = measurement();
  m.ranks.clear();
  CHECK(has(refusal(prediction("pytorch"), m), "nothing to compare: no rank was measured"));
}

TEST_CASE("a prediction that contradicts itself agrees with nothing") {
  Prediction p = prediction();
  p.contradiction = "p.json: timeline[0] is odd";
  CHECK(refusal(p, measurement()) == "p.json: timeline[0] is odd");
  // Where a tensor differs, that says more.
  p.step->tensors[1].bytes = 101_B;
  CHECK(has(compare(p, measurement()).first_difference(), "101 B predicted, 100 B measured"));
}

TEST_CASE("a run that did not train does not agree, be its memory as predicted") {
  Measurement m = measurement();
  m.outcome = "diverged";
  m.error = Failure{"training", "the loss of step 2 of 3 is not finite", 2};
  const Comparison c = compare(prediction(), m);
  CHECK(!c.agrees);
  CHECK(c.memory.verdict == Level::Verdict::exact);
  CHECK(c.outcome == "diverged");
  CHECK(c.outcome_text == "the loss of step 2 of 3 is not finite");
}

TEST_CASE("sums of equal names stand beside each other") {
  StepLedger two = ledger();
  two.tensors.push_back({"x", "activations", 100_B, 2, 2});
  const std::vector<TensorRow> rows = tensor_rows(ledger(), two);
  REQUIRE(rows.size() == 3);
  CHECK(rows[1].bytes.name == "x");
  CHECK(rows[1].predicted == 1);
  CHECK(rows[1].measured == 2);
  CHECK(rows[1].bytes.difference() == 100_B);
}
