// The collapsed peak against the unrolled timeline, on programs made at random.
#include "planner/program/peak.h"

#include <doctest/doctest.h>

#include <random>

#include "planner/program/timeline.h"

using namespace plimsoll;
using namespace plimsoll::models;

namespace {

// A random program: one or two groups of 0 to 12 layers, segments over them up and down and between
// them, operands within the group, to neighbours up to 2 away, beyond the ends, and outside.
class RandomProgram {
 public:
  explicit RandomProgram(unsigned seed) : random_(seed) {}

  StepProgram make() {
    const int groups = pick(1, 3);
    for (int g = 0; g < groups; ++g)
      program_.groups.push_back({"layers", 0, pick(0, 3) == 0 ? pick(0, 3) : pick(4, 12)});
    const int tensors = pick(1, 14);
    for (int i = 0; i < tensors; ++i)
      program_.tensors.push_back({"t", Bytes(pick(0, 1000)),
                                  static_cast<GroupId>(pick(-1, groups - 1)), 0,
                                  static_cast<Category>(pick(0, 7)), Stream::compute,
                                  pick(0, 9) == 0 ? Residency::persistent : Residency::step});
    const int segments = pick(1, 6);
    for (int s = 0; s < segments; ++s) add_segment(static_cast<GroupId>(pick(-1, groups - 1)));
    return program_;
  }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  void add_segment(GroupId group) {
    Segment segment;
    segment.group = group;
    segment.descending = pick(0, 1) == 1;
    segment.op_begin = static_cast<std::uint32_t>(program_.ops.size());
    const int ops = pick(0, 5);
    for (int k = 0; k < ops; ++k) add_op(group);
    segment.op_end = static_cast<std::uint32_t>(program_.ops.size());
    program_.segments.push_back(segment);
  }

  void add_op(GroupId group) {
    Op op;
    op.name = "op";
    op.operand_begin = static_cast<std::uint32_t>(program_.operands.size());
    op.scratch = Bytes(pick(0, 2) == 0 ? pick(0, 500) : 0);
    const int operands = pick(0, 4);
    for (int i = 0; i < operands; ++i) {
      Operand o;
      o.tensor = pick(0, static_cast<int>(program_.tensors.size()) - 1);
      if (pick(0, 1) == 1) {
        o.delta = static_cast<std::int8_t>(pick(-2, 2));
        if (pick(0, 1) == 1) o.beyond = overhead(group);
      }
      program_.operands.push_back(o);
    }
    op.operand_count = static_cast<std::uint32_t>(program_.operands.size()) - op.operand_begin;
    program_.ops.push_back(op);
  }

  // A tensor that is not of `group`.
  TensorId overhead(GroupId group) {
    for (int tries = 0; tries < 8; ++tries) {
      const int i = pick(0, static_cast<int>(program_.tensors.size()) - 1);
      const GroupId of_tensor = program_.tensors[static_cast<std::size_t>(i)].group;
      if (of_tensor == kNoGroup || of_tensor != group) return i;
    }
    return kNoTensor;
  }

  std::mt19937 random_;
  StepProgram program_;
};

}  // namespace

TEST_CASE("the collapsed peak equals the unrolled one on random programs") {
  planner::PeakFinder finder;
  for (unsigned seed = 0; seed < 20'000; ++seed) {
    const StepProgram program = RandomProgram(seed).make();
    const planner::Timeline timeline = planner::unroll(program);
    const planner::Peak peak = finder.find(program);
    CAPTURE(seed);
    if (timeline.steps.empty()) {
      REQUIRE(peak.bytes == peak.resident);
      continue;
    }
    const planner::Moment& top = timeline.steps[timeline.peak_step];
    REQUIRE(peak.bytes == std::max(top.high_water, peak.resident));
    // The place: it need not be the first of equals inside a folded run, but it must be as high.
    if (peak.bytes > peak.resident) {
      bool found = false;
      for (const planner::Moment& m : timeline.steps)
        found = found || (m.at == peak.at && m.high_water == peak.bytes);
      REQUIRE(found);
    }
  }
}

// Lifetimes of an earlier program of equal structure are used again; one of another structure with
// the same likeness must not be taken for it.
TEST_CASE("other sizes in a known structure give the peak that a new finder gives") {
  planner::PeakFinder used, other;
  for (unsigned seed = 0; seed < 2'000; ++seed) {
    StepProgram program = RandomProgram(seed).make();
    planner::PeakFinder::Known known, unread;
    used.find(program, seed % 3, known);
    for (std::size_t i = 0; i < program.tensors.size(); ++i)
      program.tensors[i].bytes = program.tensors[i].bytes * static_cast<std::int64_t>(1 + i % 5);
    for (models::Op& op : program.ops) op.scratch += 3_KiB;
    const planner::Peak again = used.find(program, seed % 3, unread);
    const planner::Peak anew = planner::PeakFinder().find(program);
    CAPTURE(seed);
    REQUIRE(other.find_resized(program, {}, known).bytes == anew.bytes);
    REQUIRE(again.bytes == anew.bytes);
    REQUIRE(again.resident == anew.resident);
    REQUIRE(again.at == anew.at);
  }
}

// Segments of random programs get sections; the timeline, which knows nothing of them, says what is
// there when each begins and how high it goes.
TEST_CASE("sections begin and rise as the unrolled program does") {
  std::size_t several = 0;
  for (unsigned seed = 0; seed < 2'000; ++seed) {
    StepProgram program = RandomProgram(seed).make();
    for (std::size_t s = 0; s < program.segments.size(); ++s)
      program.segments[s].section = static_cast<models::Section>((seed + s * (seed % 2 + 1)) % 3);
    const planner::Timeline timeline = planner::unroll(program);
    planner::PeakFinder finder;
    const planner::Peak peak = finder.find(program);
    std::vector<planner::SectionPeak> expected;
    Bytes live = peak.resident;
    for (const planner::Moment& moment : timeline.steps) {
      const models::Section section = program.segments[moment.at.segment].section;
      if (expected.empty() || expected.back().section != section)
        expected.push_back({section, live - peak.resident, Bytes(0), Bytes(0)});
      planner::SectionPeak& one = expected.back();
      one.rise = std::max(one.rise, moment.high_water - peak.resident - one.entry);
      one.scratch = std::max(one.scratch, program.ops[moment.at.op].scratch);
      live = moment.after;
    }
    CAPTURE(seed);
    REQUIRE(finder.section_peaks() == expected);
    several += expected.size() > 2 ? 1 : 0;
  }
  CHECK(several > 300);
}

TEST_CASE("categories sum to the high water at every step of random programs") {
  for (unsigned seed = 0; seed < 500; ++seed) {
    const StepProgram program = RandomProgram(seed).make();
    const planner::Timeline timeline = planner::unroll(program);
    for (std::size_t i = 0; i < timeline.steps.size(); ++i) {
      CAPTURE(seed);
      REQUIRE(reports::sum(planner::categories_at(program, timeline, i)) ==
              timeline.steps[i].high_water);
    }
  }
}

TEST_CASE("a tensor is born at its first touch and dies after its last reader") {
  // a (100 B): written by op 0, read by op 1. b (10 B): written by op 1, read by op 2.
  StepProgram p;
  p.tensors = {{"a", 100_B}, {"b", 10_B}};
  p.operands = {{0, kNoTensor, 0, Access::write},
                {0, kNoTensor, 0, Access::read},
                {1, kNoTensor, 0, Access::write},
                {1, kNoTensor, 0, Access::read}};
  p.ops = {{"0", 0, 1, 0_B}, {"1", 1, 2, 5_B}, {"2", 3, 1, 0_B}};
  p.segments = {{0, 3, kNoGroup, false, 1}};
  const planner::Timeline timeline = planner::unroll(p);
  REQUIRE(timeline.steps.size() == 3);
  CHECK(timeline.steps[0].high_water == 100_B);
  CHECK(timeline.steps[1].high_water == 115_B);  // both, and 5 of scratch
  CHECK(timeline.steps[1].after == 10_B);
  CHECK(timeline.steps[2].after == 0_B);
  CHECK(timeline.peak_step == 1);
}

TEST_CASE("what n layers save adds up, and is given back in reverse") {
  // Forward of layer l writes s[l] (7 B) on top of 1 B scratch; backward reads it.
  StepProgram p;
  p.groups = {{"layers", 0, 80}};
  p.tensors = {{"s", 7_B, 0, 0}};
  p.operands = {{0, kNoTensor, 0, Access::write}, {0, kNoTensor, 0, Access::read}};
  p.ops = {{"f", 0, 1, 1_B}, {"b", 1, 1, 3_B}};
  p.segments = {{0, 1, 0, false, 1}, {1, 2, 0, true, 1}};
  planner::PeakFinder finder;
  const planner::Peak peak = finder.find(p);
  CHECK(peak.bytes == 563_B);  // 80 * 7 + 3: the first backward
  CHECK(planner::name_of_op(p, peak.at) == "layers.79.b");
}
