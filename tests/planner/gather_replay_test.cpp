// Blocks of the stream that gathers, taken as they are known one by one, while a program counts
// levels of them.
#include "planner/memory/gather_replay.h"

#include <doctest/doctest.h>

using namespace plimsoll;
using namespace plimsoll::planner;

namespace {

// The first step has 30 MiB and then 40; each that follows has both at once.
Start known() {
  Start start;
  start.set_gathers({Gathers{{.block = 0, .bytes = 30_MiB},
                             {.block = 0, .goes = true},
                             {.block = 1, .bytes = 40_MiB},
                             {.block = 1, .goes = true}},
                     Gathers{{.block = 0, .bytes = 30_MiB},
                             {.block = 1, .bytes = 40_MiB},
                             {.block = 0, .goes = true},
                             {.block = 1, .goes = true}}});
  return start;
}

GatherReplay::Ask asking(CachingAllocator& allocator) {
  return [&](Bytes bytes) { return allocator.allocate_uncounted(bytes, models::Stream::gather); };
}

}  // namespace

TEST_CASE("a level that is counted is there, and in the sum of blocks once") {
  const Start start = known();
  CachingAllocator allocator({});
  GatherReplay replay(allocator, start);
  const GatherReplay::Ask ask = asking(allocator);
  CHECK(replay.count(30_MiB, ask));
  CHECK(allocator.allocated() == 30_MiB);
  CHECK(allocator.reserved() == 30_MiB);
  replay.discount(30_MiB);
  CHECK(replay.count(40_MiB, ask));
  CHECK(allocator.allocated() == 40_MiB);
  CHECK(allocator.reserved() == 70_MiB);  // the first segment is too small for it
  replay.discount(40_MiB);
  CHECK(replay.finish(ask));
  replay.first_step_is_over();
  CHECK(replay.count(70_MiB, ask));
  CHECK(allocator.allocated() == 70_MiB);
  CHECK(allocator.reserved() == 70_MiB);
  // More than there ever is: counted, and nothing is made for it.
  CHECK(replay.count(500_MiB, ask));
  CHECK(allocator.allocated() == 570_MiB);
  CHECK(allocator.reserved() == 70_MiB);
}

TEST_CASE("where the room ends, what is gathered takes its part of it") {
  const Start start = known();
  CachingAllocator allocator({.limit = 60_MiB});
  GatherReplay replay(allocator, start);
  const GatherReplay::Ask ask = asking(allocator);
  CHECK(replay.count(30_MiB, ask));
  replay.discount(30_MiB);
  CHECK(replay.count(40_MiB, ask));  // the first one's segment was given back
  CHECK(allocator.reserved() == 40_MiB);
  CHECK_FALSE(allocator.allocate(30_MiB, models::Stream::compute));
  replay.discount(40_MiB);
  CHECK(replay.finish(ask));
  replay.first_step_is_over();
  CHECK_FALSE(replay.count(70_MiB, ask));
}

// Of equal micro-batches the second has the same again.
TEST_CASE("behind a micro-batch's last level its blocks go, and come again") {
  const Start start = known();
  CachingAllocator allocator({});
  GatherReplay replay(allocator, start);
  replay.first_step_is_over();
  const GatherReplay::Ask ask = asking(allocator);
  for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
    CHECK(replay.count(30_MiB, ask));
    CHECK(replay.count(40_MiB, ask));
    CHECK(allocator.reserved() == 70_MiB);
    replay.discount(70_MiB);
  }
  CHECK(replay.finish(ask));
  allocator.empty_cache();
  CHECK(allocator.reserved() == 0_MiB);
}
