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
