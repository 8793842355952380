#include "reports/measurement_json.h"
#include "reports/profile_table.h"

#include <doctest/doctest.h>

#include <string>

#include "reports/fingerprint.h"
#include "tests/reports/made_up_comparison.h"

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {

std::string document(const Measurement& m, const Comparison* comparison = nullptr) {
  std::string text;
  JsonWriter json(text, JsonWriter::Style::compact);
  write_measurement(json, m, {.version = "1.2.3", .commit = "abc"}, comparison);
  return text;
}

// As a program writes it: with a workload that has its fingerprint, and a date.
Measurement written() {
  Measurement m = measurement();
  m.measured_at = "2026-01-31T12:00:00Z";
  const std::string batch = R"("batch":{"grad_accum":1,"micro_batch":1,"seq_len":8})";
  const std::string rest = R"("stack":{"name":"plimsoll"},"strategy":{"world_size":2})";
  m.fingerprint = fingerprint("{" + batch + R"(,"model":{"config":null},)" + rest + "}");
  m.workload = R"({"fingerprint":")" + m.fingerprint +
               R"(","model":{"config":null,"name":"tiny"},)" + batch + "," + rest + "}";
  return m;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a measurement that was written and read agrees with what was written") {
  Measurement m = written();
  m.ranks[1].ledgers[0].ledger.tensors[0].died = 1 << 20;  // for ever
  m.ranks[0].initial_reserved = 12_B;
  m.ranks[0].peak_phase = "forward";
  m.ranks[0].peak_where = "layers.0.mlp";
  const Measurement read = read_measurement(document(m), "m.json");
  REQUIRE(read.ranks.size() == 2);
  CHECK(read.fingerprint == m.fingerprint);
  CHECK(read.stack == "plimsoll");
  CHECK(read.world == 2);
  CHECK(read.outcome == "completed");
  CHECK(read.ranks[0].initial_reserved == 12_B);
  CHECK(read.ranks[0].peak_where == "layers.0.mlp");
  CHECK(read.ranks[0].at_peak == m.ranks[0].at_peak);
  CHECK(read.ranks[0].ledgers[0].steps == m.ranks[0].ledgers[0].steps);
  CHECK(read.ranks[1].ledgers[0].ledger == ledger());
  Prediction p = prediction();
  p.fingerprint = m.fingerprint;
  CHECK(compare(p, read).agrees);
}

TEST_CASE("what the driver said after each part stands in the rank, in its order") {
  Measurement m = measurement();
  m.ranks[1].driver = {{"context", 500_B, 0_B}, {"step 1", 3000_B, 2048_B}};
  std::string text;
  JsonWriter json(text, JsonWriter::Style::compact);
  write_measured_rank(json, m.ranks[1]);
  CHECK(has(text, R"("driver":[{"after":"context","used_bytes":500,"reserved_bytes":0},)"
                  R"({"after":"step 1","used_bytes":3000,"reserved_bytes":2048}],"ledgers":)"));
}

TEST_CASE("a rank is handed over as it was") {
  const Measurement m = measurement();
  std::string text;
  JsonWriter json(text, JsonWriter::Style::compact);
  write_measured_rank(json, m.ranks[1]);
  const MeasuredRank rank = read_measured_rank(text, "rank 1");
  CHECK(rank.rank == 1);
  CHECK(rank.peak == 1130_B);
  CHECK(rank.states->parameters == 1000_B);
  CHECK(rank.ledgers[0].ledger == ledger());
}

TEST_CASE("steps, and the time of all but the first") {
  Measurement m = measurement();
  m.tokens_per_step = 100;
  m.flops = models::StepFlops{.model = 6e9, .attention = 2e9};
  m.hardware_flops = 8e9;
  m.peak_flops = 1e10;
  m.steps = {{.step = 1, .loss = 5.5, .grad_norm = 2.0, .seconds = 9.0},
             {.step = 2, .loss = 5.25, .seconds = 1.0, .tokens_per_second = 100.0},
             {.step = 3, .loss = {}, .seconds = 4.0, .skipped = true},
             {.step = 4, .seconds = 2.0}};
  const std::string text = document(m);
  CHECK(has(text, R"({"step":1,"loss":5.5,"grad_norm":2.0,"seconds":9.0,)"));
  CHECK(has(text,
            R"({"step":3,"loss":null,"grad_norm":null,"seconds":4.0,"tokens_per_second":null,)"
            R"("mfu":null,"skipped":true})"));
  // 1, 4, 2: the median is 2, deviations 1, 2, 0; 6e9 / 2 s / 1e10 / 2 ranks = 0.15.
  CHECK(has(text, R"("time":{"step_seconds":2.0,"mad_seconds":1.0,"timed_steps":3,)"));
  // With full attention (6e9 + 2e9) / 2 / 1e10 / 2 = 0.2; a profiled step had 8e9, the same here.
  CHECK(has(text, R"("tokens_per_second":50.0,"model_flops_per_step":6000000000.0,)"
                  R"("hardware_flops_per_step":8000000000.0,"mfu":0.15,)"
                  R"("mfu_full_attention":0.2,"hfu":0.2,"loop":null})"));
  m.hardware_flops = 7e9;  // 0.175
  CHECK(has(document(m), R"("mfu_full_attention":0.2,"hfu":0.175,"loop":null})"));
  m.peak_flops.reset();  // an unknown GPU, or the host
  CHECK(has(document(m), R"("mfu":null,"mfu_full_attention":null,"hfu":null,"loop":null})"));
  CHECK(has(document(measurement()), R"("time":null)"));
}

// The first of five is not timed: 1, 2, 4 and 9 s, of which the middle two are 3 s.
TEST_CASE("a step's time is the median of those that are timed, and is held against them") {
  Measurement m = written();
  for (const double seconds : {50.0, 9.0, 1.0, 4.0, 2.0}) {
    MeasuredStep step;
    step.step = static_cast<std::int64_t>(m.steps.size()) + 1;
    step.loss = 1;
    step.seconds = seconds;
    m.steps.push_back(step);
  }
  const std::string text = document(m);
  CHECK(has(text, R"("step_seconds":3.0)"));
  CHECK(read_measurement(text, "m.json").step_seconds == 3);
  std::string other = text;
  other.replace(other.find(R"("step_seconds":3.0)"), 18, R"("step_seconds":3.5)");
  CHECK_THROWS_WITH_AS((void)read_measurement(other, "m.json"),
                       doctest::Contains("time.step_seconds"), Error);
}

TEST_CASE("losses that are no numbers are null") {
  Measurement m = measurement();
  m.steps = {{.step = 1, .loss = std::numeric_limits<double>::quiet_NaN(), .seconds = 1.0}};
  CHECK(has(document(m), R"("loss":null)"));
}

TEST_CASE("a run whose steps trained nothing has not completed") {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto outcome = [](std::vector<MeasuredStep> steps) {
    Measurement m = measurement();
    m.steps = std::move(steps);
    judge_training(m);
    CHECK(m.ended());
    return m.outcome + (m.error ? " " + std::to_string(*m.error->step) : "");
  };
  const MeasuredStep fine{.step = 1, .loss = 5.5, .grad_norm = 2.0};
  CHECK(outcome({fine, {.step = 2, .loss = 5.0, .grad_norm = 1.0}}) == "completed");
  CHECK(outcome({fine, {.step = 2, .loss = kNan, .grad_norm = 1.0}}) == "diverged 2");
  CHECK(outcome({fine, {.step = 2, .loss = kNan, .grad_norm = kNan, .skipped = true}}) ==
        "diverged 2");
  CHECK(outcome({fine, {.step = 2, .loss = 5.0, .grad_norm = kInfinity}}) == "diverged 2");
  // Loss scaling begins too high, and finds its scale.
  const MeasuredStep over{.step = 1, .loss = 5.5, .grad_norm = kInfinity, .skipped = true};
  CHECK(outcome({over, {.step = 2, .loss = 5.5, .grad_norm = 1.0}}) == "completed");
  CHECK(outcome({over, over}) == "not_stepped 1");
  CHECK(outcome({}) == "completed");
}

TEST_CASE("a run that ended early says why") {
  Measurement m = written();
  m.outcome = "out_of_memory";
  m.error = Failure{"out_of_memory", "rank 1: logits [8, 256] does not fit", 2};
  const std::string text = document(m);
  CHECK(has(text, R"("outcome":"out_of_memory","error":{"kind":"out_of_memory",)"));
  CHECK(has(text, R"("step":2,)"));
  CHECK(read_measurement(text, "m").error->message == m.error->message);
}

TEST_CASE("the comparison stands in the measurement") {
  const Measurement m = measurement();
  const Comparison comparison = compare(prediction(), m);
  CHECK(has(document(m, &comparison), R"("comparison":{"agrees":true,)"));
  CHECK(has(document(m), R"("comparison":null})"));
}

TEST_CASE(
    "where the time went, what libraries did, and the loop by the clock stand in the document") {
  Measurement m = measurement();
  CHECK(has(document(m), R"("libraries":null,"profile":null)"));
  m.steps = {{.step = 1, .seconds = 2.0}};
  m.loop = Loop{.steps = 4, .seconds = 10};
  m.tokens_per_step = 100;
  m.libraries = LibraryNotes{
      .refusals = {{"cudnn", "forward: dropout", 12}},
      .choices = {{"cublaslt", "a=bf16", "id=66, 2 of 8", 0.25}, {"cudnn", "x", "y", {}}}};
  m.profile = Profile{.step_seconds = 0.5,
                      .peak_flops = 1e15,
                      .rows = {{"layers.*.mlp", "forward", "linear_forward", 3, 0.25, 8, 16, 0.5}}};
  const std::string text = document(m);
  CHECK(has(text, R"("loop":{"steps":4,"seconds":10.0,"tokens_per_second":40.0,"mfu":)"));
  CHECK(has(text, R"("refusals":[{"library":"cudnn","why":"forward: dropout","times":12}])"));
  CHECK(has(text, R"("algorithm":"id=66, 2 of 8","seconds":0.25},)"
                  R"({"library":"cudnn","what":"x","algorithm":"y","seconds":null})"));
  CHECK(has(text, R"("profile":{"step_seconds":0.5,"peak_flops":1000000000000000.0,)"
                  R"("bytes_per_second":null,"rows":[{"op":"layers.*.mlp","phase":"forward",)"
                  R"("kernel":"linear_forward","calls":3,"seconds":0.25,"bytes":8.0,"flops":16.0,)"
                  R"("roofline":0.5}]})"));
  const std::string table = profile_table(*m.profile, 1, {});
  CHECK(has(table, "Time of a step of 500.000 ms"));
  CHECK(has(table, "layers.*.mlp (forward)                3   250.000   50.0"));
  CHECK(has(table, "between kernels" + std::string(27, ' ') + "250.000   50.0"));
}

TEST_CASE("clocks that were read stand in the document, and null where none were") {
  Measurement m = written();
  CHECK(has(document(m), R"("clocks":null)"));
  m.clocks = Clocks{.samples = 7,
                    .sm_mhz = 1980,
                    .memory_mhz = 2619,
                    .power_watts = 650.5,
                    .temperature_celsius = 61};
  CHECK(has(
      document(m),
      R"("clocks":{"samples":7,"sm_clock_mhz":1980.0,"memory_clock_mhz":2619.0,"power_watts":650.5,)"
      R"("temperature_c":61.0})"));
}
