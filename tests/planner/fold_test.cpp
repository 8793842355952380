// Equal blocks of ops are added up once: which are, which are not, and that the peak stays.
#include <doctest/doctest.h>

#include <vector>

#include "planner/program/lifetimes.h"
#include "planner/program/peak.h"

using namespace plimsoll;
using models::Access;
using models::StepProgram;
using models::TensorId;
using planner::Lifetimes;

namespace {

struct Touch {
  TensorId tensor;
  Access access;
};

// Ops of one segment, and what each touches.
StepProgram program_of(const std::vector<std::int64_t>& bytes,
                       const std::vector<std::vector<Touch>>& ops) {
  StepProgram out;
  for (const std::int64_t size : bytes) out.tensors.push_back({.name = "t", .bytes = Bytes(size)});
  for (const std::vector<Touch>& touches : ops) {
    out.ops.push_back({.name = "op",
                       .operand_begin = static_cast<std::uint32_t>(out.operands.size()),
                       .operand_count = static_cast<std::uint32_t>(touches.size())});
    for (const Touch& t : touches) out.operands.push_back({.tensor = t.tensor, .access = t.access});
  }
  out.segments = {{.op_begin = 0, .op_end = static_cast<std::uint32_t>(ops.size())}};
  return out;
}

struct Part {
  std::uint32_t begin, end, times;
  bool operator==(const Part&) const = default;
};

std::vector<Part> folded(const StepProgram& program, const planner::EqualSizes& equal) {
  Lifetimes lifetimes;
  planner::LifetimeFinder().find(program, lifetimes);
  planner::fold(equal, lifetimes);
  std::vector<Part> parts;
  for (const Lifetimes::Part& part : lifetimes.parts)
    parts.push_back({part.op_begin, part.op_end, part.times});
  // The sizes in the program itself are alike, so that all of it may be asked again.
  planner::PeakFinder finder;
  planner::PeakFinder::Known known;
  finder.find(program, 0, known);
  const planner::Peak anew = planner::PeakFinder().find(program);
  CHECK(finder.find_resized(program, equal, known).bytes == anew.bytes);
  return parts;
}

constexpr Touch makes(TensorId t) {
  return {t, Access::write};
}
constexpr Touch reads(TensorId t) {
  return {t, Access::read};
}

}  // namespace

// Three blocks make 10 and 20 bytes and let go of them: once three times, whatever the order in
// which a block makes the two.
TEST_CASE("equal blocks of ops are one part, in whatever order an op makes its tensors") {
  const std::vector<std::int64_t> bytes{10, 20, 10, 20, 20, 10};
  const planner::EqualSizes equal{{0, 1, 0, 1, 1, 0}, {{0, 2, 3}}};
  const auto block = [](TensorId a, TensorId b) {
    return std::vector<std::vector<Touch>>{{makes(a), makes(b)}, {reads(a), reads(b)}};
  };
  for (const bool turned : {false, true}) {
    CAPTURE(turned);
    std::vector<std::vector<Touch>> ops = block(0, 1);
    for (const auto& more : {turned ? block(3, 2) : block(2, 3), block(4, 5)})
      ops.insert(ops.end(), more.begin(), more.end());
    const StepProgram program = program_of(bytes, ops);
    CHECK(folded(program, equal) == std::vector<Part>{{0, 2, 3}});
    CHECK(planner::PeakFinder().find(program).bytes == Bytes(30));
  }
}

// The second of four blocks makes 30 bytes where the others make 20: the last two are equal.
TEST_CASE("a block that makes something else stands alone, and the equal ones behind it together") {
  const std::vector<std::int64_t> bytes{10, 20, 10, 30, 10, 20, 10, 20};
  const planner::EqualSizes equal{{0, 1, 0, 3, 0, 1, 0, 1}, {{0, 2, 4}}};
  std::vector<std::vector<Touch>> ops;
  for (TensorId t = 0; t < 8; t += 2)
    ops.insert(ops.end(), {{makes(t), makes(t + 1)}, {reads(t), reads(t + 1)}});
  const StepProgram program = program_of(bytes, ops);
  CHECK(folded(program, equal) == std::vector<Part>{{0, 4, 1}, {4, 6, 2}});
  CHECK(planner::PeakFinder().find(program).bytes == Bytes(40));
}

// A tensor of the first block that lives on dies in the third: a death more than the others have.
TEST_CASE("a birth is no death, and one more of either is another block") {
  const std::vector<std::int64_t> bytes{10, 10, 10, 10};
  const planner::EqualSizes equal{{0, 0, 0, 0}, {{0, 1, 3}}};
  const StepProgram lives =
      program_of(bytes, {{makes(0)}, {makes(1), reads(1)}, {makes(2), reads(0)}});
  CHECK(folded(lives, equal) == std::vector<Part>{{0, 3, 1}});
  CHECK(planner::PeakFinder().find(lives).bytes == Bytes(20));
  // Each makes one and lets go of it.
  const StepProgram alike = program_of(bytes, {{makes(0)}, {makes(1)}, {makes(2)}, {makes(3)}});
  CHECK(folded(alike, equal) == std::vector<Part>{{0, 1, 3}, {3, 4, 1}});
  CHECK(planner::PeakFinder().find(alike).bytes == Bytes(10));
}
