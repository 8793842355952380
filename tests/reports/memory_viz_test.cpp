#include "reports/traces/memory_viz.h"

#include <doctest/doctest.h>

#include "models/base/error.h"
#include "reports/traces/pickle_writer.h"

using namespace plimsoll;
using namespace plimsoll::reports;
using namespace std::string_literals;

TEST_CASE("a pickle is what pickletools says of its opcodes") {
  std::string out;
  PickleWriter pickle(out);
  pickle.begin_dict();
  pickle.member("a", std::int64_t{-2});
  pickle.key("b");
  pickle.begin_list();
  pickle.value(std::int64_t{1} << 40);
  pickle.value(true);
  pickle.none();
  pickle.begin_dict();
  pickle.member("a", "x");
  pickle.end_dict();
  pickle.end_list();
  pickle.end_dict();
  pickle.finish();
  CHECK(out ==
        "\x80\x02}("s
        "X\x01\0\0\0"s
        "aq\0"s
        "J\xfe\xff\xff\xff"s
        "X\x01\0\0\0"s
        "bq\x01]("s
        "\x8a\x08\0\0\0\0\0\x01\0\0"s
        "\x88N"s
        "}(h\0X\x01\0\0\0xu"s
        "eu."s);
}

// BININT has four bytes, -2^31 … 2^31 - 1; LONG1 of eight has the rest.
TEST_CASE("a whole number has four bytes in a pickle where they are enough") {
  const auto written = [](std::int64_t number) {
    std::string out;
    PickleWriter(out).value(number);
    return out.substr(2);
  };
  CHECK(written(0) == "J\0\0\0\0"s);
  CHECK(written(2147483647) == "J\xff\xff\xff\x7f"s);
  CHECK(written(2147483648) == "\x8a\x08\0\0\0\x80\0\0\0\0"s);
  CHECK(written(-2147483648) == "J\0\0\0\x80"s);
  CHECK(written(-2147483649) == "\x8a\x08\xff\xff\xff\x7f\xff\xff\xff\xff"s);
}

TEST_CASE("more than 256 different keys have no number in a pickle") {
  std::string out;
  PickleWriter pickle(out);
  pickle.begin_dict();
  for (int i = 0; i < 256; ++i) pickle.member(std::to_string(i), true);
  pickle.member("255", true);
  CHECK(out.ends_with("h\xff\x88"s));
  CHECK_THROWS_AS(pickle.member("256", true), Error);
}

TEST_CASE("a long list is appended in pieces, and an empty one is a list") {
  std::string out;
  PickleWriter pickle(out);
  pickle.begin_list();
  for (int i = 0; i < 2001; ++i) pickle.value(false);
  pickle.end_list();
  pickle.finish();
  const std::string thousand(1000, '\x89');
  CHECK(out == "\x80\x02](" + thousand + "e(" + thousand +
                   "e(\x89"
                   "e.");
}

TEST_CASE("a text in a pickle is valid whatever a file's name holds") {
  std::string out;
  PickleWriter(out).value("\xff\n");
  CHECK(out.substr(2) == "X\x02\0\0\0??"s);
}

namespace {
StepHistory two_ops() {
  StepHistory step;
  step.ops = {{.op = "f", .phase = "forward", .high_water = 300_B},
              {.op = "b", .phase = "backward", .high_water = 100_B}};
  step.ops[0].by_category = {100_B, 0_B, 0_B, 120_B, 0_B, 80_B};
  step.ops[1].by_category = {100_B};
  step.tensors = {{"w", "parameters", 100_B, -1, 2}, {"x", "activations", 120_B, 0, 0}};
  return step;
}
}  // namespace

TEST_CASE("what an op holds while it runs is an allocation of its own") {
  CHECK(memory_snapshot(two_ops()).find("f (while it runs)") != std::string::npos);
}

TEST_CASE("tensors that are not the memory of their ops make no snapshot") {
  StepHistory step = two_ops();
  step.tensors[0].bytes = 101_B;
  CHECK_THROWS_AS(memory_snapshot(step), Error);
}

TEST_CASE("a snapshot is of a device's memory") {
  StepHistory step = two_ops();
  step.peak = 1'048'577_GiB;
  CHECK_THROWS_AS(memory_snapshot(step), Error);
}

namespace {
Measurement measured_step() {
  Measurement measurement;
  measurement.source = "m.json";
  StepLedger ledger;
  ledger.ops = {{"f", "forward", 100_B, 220_B}, {"b", "backward", 100_B, 100_B}};
  ledger.tensors = {{"w", "parameters", 100_B, -1, 2}, {"x", "activations", 120_B, 0, 0}};
  measurement.ranks = {{.rank = 3, .ledgers = {{.steps = {1}, .ledger = ledger}}}};
  return measurement;
}

std::string refusal(const Measurement& measurement, std::int64_t rank) {
  try {
    history_of(measurement, rank);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return error.message();
  }
  return "";
}
}  // namespace

TEST_CASE("a measured step is what its last ledger holds") {
  Measurement measurement = measured_step();
  CHECK(history_of(measurement, 3).peak == 220_B);
  CHECK(history_of(measurement, 3).ops[0].by_category[3] == 120_B);
  RankLedger later = measurement.ranks[0].ledgers[0];
  later.steps = {2, 3};
  later.ledger.tensors[1].bytes = 150_B;
  later.ledger.ops[0].high_water = 250_B;
  measurement.ranks[0].ledgers.push_back(later);
  CHECK(history_of(measurement, 3).peak == 250_B);
}

TEST_CASE("a measurement without the step that is asked for says what it lacks") {
  CHECK(refusal(measured_step(), 0) == "m.json: holds no rank 0");
  Measurement measurement = measured_step();
  measurement.ranks[0].ledgers[0].ledger.tensors[1].category = "cake";
  CHECK(refusal(measurement, 3) == "m.json: 'cake' is no category of memory");
  measurement = measured_step();
  measurement.ranks[0].ledgers[0].ledger.ops[0].high_water = 221_B;
  CHECK(refusal(measurement, 3) ==
        "m.json: the tensors that live during op 0, f, are not its high-water mark");
  measurement.ranks[0].ledgers.clear();
  CHECK(refusal(measurement, 3) == "m.json: holds no ledger of rank 3's tensors");
}
