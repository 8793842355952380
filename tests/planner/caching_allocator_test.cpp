// torch's caching allocator, against the constants of CUDACachingAllocator.cpp worked out by hand.
#include "planner/caching_allocator.h"

#include <doctest/doctest.h>

#include "planner/reserved.h"
#include "planner/timeline.h"

using namespace plimsoll;
using models::Stream;
using planner::CachingAllocator;

namespace {
struct Use {
  Bytes allocated, reserved;
  bool operator==(const Use&) const = default;
};
Use one(std::int64_t request) {
  CachingAllocator allocator(std::nullopt);
  allocator.allocate(Bytes(request), Stream::compute);
  return {allocator.allocated(), allocator.reserved()};
}
}  // namespace

TEST_CASE("one request reserves the segment that torch would") {
  CHECK(one(1) == Use{512_B, 2_MiB});
  CHECK(one(1 << 20) == Use{1_MiB, 2_MiB});
  // 1 MiB + 1 B is rounded to 1,049,088 B and opens a 20 MiB segment, which is split.
  CHECK(one((1 << 20) + 1) == Use{Bytes(1'049'088), 20_MiB});
  CHECK(one(10 << 20) == Use{10_MiB, 10_MiB});
  // 10 MiB + 1 B: a 12 MiB segment; 2,096,640 B are left, more than 1 MiB, and split off.
  CHECK(one((10 << 20) + 1) == Use{Bytes(10'486'272), 12_MiB});
  // 11 MiB + 1 B: 1,048,064 B would be left, not more than 1 MiB: the whole segment is handed out.
  CHECK(one((11 << 20) + 1) == Use{12_MiB, 12_MiB});
}

TEST_CASE("a freed block serves again, best fit first, and never another stream") {
  CachingAllocator allocator(std::nullopt);
  const auto big = allocator.allocate(30_MiB, Stream::compute);
  const auto small = allocator.allocate(24_MiB, Stream::compute);
  allocator.free(*big);
  allocator.free(*small);
  allocator.allocate(24_MiB, Stream::compute);  // the 24 MiB block, not the 30 MiB one
  allocator.allocate(30_MiB, Stream::compute);
  CHECK(allocator.reserved() == 54_MiB);
  allocator.allocate(2_MiB, Stream::gather);
  CHECK(allocator.reserved() == 74_MiB);
}

TEST_CASE("neighbours merge when both are free") {
  CachingAllocator allocator(std::nullopt);
  const auto a = allocator.allocate(5_MiB, Stream::compute);  // 20 MiB segment: a, b, rest
  const auto b = allocator.allocate(5_MiB, Stream::compute);
  const auto c = allocator.allocate(9_MiB, Stream::compute);
  CHECK(allocator.reserved() == 20_MiB);
  allocator.free(*a);
  allocator.free(*c);
  allocator.free(*b);
  allocator.allocate(19_MiB, Stream::compute);
  CHECK(allocator.reserved() == 20_MiB);
  CHECK(allocator.allocated() == 20_MiB);  // 1 MiB is not split off
}

TEST_CASE("near the capacity cached segments are given back before the request fails") {
  CachingAllocator allocator(64_MiB);
  const auto a = allocator.allocate(40_MiB, Stream::compute);
  allocator.free(*a);
  CHECK(allocator.allocate(60_MiB, Stream::compute).has_value());  // 40 + 60 > 64
  CHECK(allocator.reserved() == 60_MiB);
  CHECK_FALSE(allocator.allocate(10_MiB, Stream::compute).has_value());
  CHECK(allocator.peak_reserved() == 60_MiB);
}

TEST_CASE("a segment with one live byte is not given back") {
  CachingAllocator allocator(40_MiB);
  const auto a = allocator.allocate(5_MiB, Stream::compute);  // opens 20 MiB
  const auto b = allocator.allocate(12_MiB, Stream::compute);
  allocator.free(*b);
  CHECK_FALSE(allocator.allocate(30_MiB, Stream::compute).has_value());
  allocator.free(*a);
  CHECK(allocator.allocate(30_MiB, Stream::compute).has_value());
}

// 64 MiB that are built, flattened into 64 MiB that stay, and let go: their segment stays in the
// cache, and is too small for the 96 MiB of the step.
TEST_CASE("what a start leaves in the cache is reserved, and given back where room is short") {
  models::StepProgram program;
  program.tensors = {{.name = "flat", .bytes = 64_MiB, .residency = models::Residency::persistent},
                     {.name = "hidden", .bytes = 96_MiB}};
  program.operands = {{.tensor = 1, .access = models::Access::write}};
  program.ops = {{.name = "forward", .operand_count = 1}};
  program.segments = {{.op_begin = 0, .op_end = 1}};
  const planner::Timeline timeline = planner::unroll(program);
  planner::Start start;
  const auto built = start.hold(64_MiB);
  start.take(0);
  start.drop(built);
  const auto reserved = [&](std::optional<Bytes> capacity, const planner::Start& before) {
    const planner::Reserved r = planner::replay(program, timeline, capacity, before);
    return r.fits ? r.reserved : Bytes(-1);
  };
  CHECK(reserved(std::nullopt, {}) == 160_MiB);
  CHECK(reserved(std::nullopt, start) == 224_MiB);
  CHECK(reserved(200_MiB, start) == 160_MiB);  // the cached segment is given back
  CHECK(reserved(160_MiB, start) == 160_MiB);
  CHECK(reserved(159_MiB, start) == Bytes(-1));
  // No room for both at once: what was built goes first, as over the host.
  program.tensors[1].bytes = 2_MiB;
  const planner::Timeline small = planner::unroll(program);
  const planner::Reserved tight = planner::replay(program, small, 100_MiB, start);
  CHECK(tight.fits);
  CHECK(tight.reserved == 84_MiB);  // 64, and a segment of 20 MiB for the step
}
