// torch's caching allocator, against the constants of CUDACachingAllocator.cpp worked out by hand.
#include "planner/memory/caching_allocator.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <list>
#include <random>
#include <utility>
#include <vector>

#include "planner/memory/reserved.h"
#include "planner/program/timeline.h"

using namespace plimsoll;
using models::Stream;
using planner::CachingAllocator;

namespace {
struct Use {
  Bytes allocated, reserved;
  bool operator==(const Use&) const = default;
};
Use one(std::int64_t request) {
  CachingAllocator allocator({});
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
  CachingAllocator allocator({});
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
  CachingAllocator allocator({});
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
  CachingAllocator allocator({.limit = 64_MiB});
  const auto a = allocator.allocate(40_MiB, Stream::compute);
  allocator.free(*a);
  CHECK_FALSE(allocator.next_limit().has_value());
  CHECK(allocator.allocate(60_MiB, Stream::compute).has_value());  // 40 + 60 > 64
  CHECK(allocator.reserved() == 60_MiB);
  CHECK(allocator.next_limit() == 100_MiB);
  CHECK_FALSE(allocator.allocate(10_MiB, Stream::compute).has_value());
  CHECK(allocator.peak_reserved() == 60_MiB);
  CHECK(allocator.next_limit() == 70_MiB);
}

TEST_CASE("a segment with one live byte is not given back") {
  CachingAllocator allocator({.limit = 40_MiB});
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
    const planner::Reserved r = planner::replay(program, timeline, {.limit = capacity}, before);
    return r.fits ? r.reserved : Bytes(-1);
  };
  CHECK(reserved(std::nullopt, {}) == 160_MiB);
  CHECK(reserved(std::nullopt, start) == 224_MiB);
  CHECK(reserved(200_MiB, start) == 160_MiB);  // the cached segment is given back
  CHECK(reserved(160_MiB, start) == 160_MiB);
  CHECK(reserved(159_MiB, start) == Bytes(-1));
  // No room for both at once: what was built goes first, as over the host, where the stack can.
  program.tensors[1].bytes = 2_MiB;
  const planner::Timeline small = planner::unroll(program);
  CHECK_FALSE(planner::replay(program, small, {.limit = 100_MiB}, start).fits);
  start.let_go_where_short();
  const planner::Reserved tight = planner::replay(program, small, {.limit = 100_MiB}, start);
  CHECK(tight.fits);
  CHECK(tight.reserved == 84_MiB);  // 64, and a segment of 20 MiB for the step
}

// 30 MiB that stay and 40 of the first op, whose own block is 8; then 12 of the second, for which
// the 40 are gone again. With room for 64 the 40 are refused: 30 are reserved then.
TEST_CASE("a replay tells every request, what was there before it, and the one that is refused") {
  models::StepProgram program;
  program.tensors = {
      {.name = "weight", .bytes = 30_MiB, .residency = models::Residency::persistent},
      {.name = "hidden", .bytes = 40_MiB},
      {.name = "grad", .bytes = 12_MiB}};
  program.operands = {{.tensor = 1, .access = models::Access::write},
                      {.tensor = 2, .access = models::Access::write}};
  program.ops = {{.name = "forward", .operand_count = 1, .scratch = 8_MiB},
                 {.name = "backward", .operand_begin = 1, .operand_count = 1}};
  program.segments = {{.op_begin = 0, .op_end = 2}};
  const planner::Timeline timeline = planner::unroll(program);
  std::vector<planner::Allocation> all;
  const auto watch = [&](const planner::Allocation& asked) { all.push_back(asked); };
  planner::replay(program, timeline, {}, {}, {}, watch);
  REQUIRE(all.size() == 10);  // the weight, and three in each of three steps
  CHECK(all[0].requested == 30_MiB);
  CHECK(all[0].step == -1);
  CHECK(all[1].lifetime == 1);
  CHECK(all[1].allocated == 30_MiB);
  CHECK(all[1].from_driver);
  CHECK(all[2].requested == 8_MiB);  // the op's own
  CHECK(all[2].lifetime == -1);
  CHECK(all[2].step == 0);
  CHECK(all[2].allocated == 70_MiB);
  CHECK(all[2].reserved == 70_MiB);
  CHECK(all[3].allocated == 30_MiB);
  CHECK_FALSE(all[3].from_driver);  // out of the 40 MiB
  CHECK(all[3].first_step);
  CHECK_FALSE(all[4].first_step);

  all.clear();
  CHECK_FALSE(planner::replay(program, timeline, {.limit = 64_MiB}, {}, {}, watch).fits);
  REQUIRE(all.size() == 2);
  CHECK_FALSE(all[1].granted);
  CHECK(all[1].requested == 40_MiB);
  CHECK(all[1].reserved == 30_MiB);
}

// Up to 1 MiB, below 10 MiB, above.
TEST_CASE("the size that the driver is asked for") {
  const CachingAllocator allocator({});
  CHECK(allocator.segment_for(1_B) == 2_MiB);
  CHECK(allocator.segment_for(1_MiB) == 2_MiB);
  CHECK(allocator.segment_for(1_MiB + 1_B) == 20_MiB);
  CHECK(allocator.segment_for(10_MiB - 512_B) == 20_MiB);
  CHECK(allocator.segment_for(10_MiB - 511_B) == 10_MiB);  // 10 MiB after rounding to 512 B
  CHECK(allocator.segment_for(Bytes(202383360 * 2)) == 388_MiB);  // 386.02
}

namespace {

// The same rules without a row of free blocks: every block is looked at.
class Plain {
 public:
  explicit Plain(std::int64_t capacity) : capacity_(capacity) {}
  // Address of the block, -1: refused.
  std::int64_t allocate(std::int64_t requested, int stream) {
    const std::int64_t size = std::max<std::int64_t>(512, (requested + 511) / 512 * 512);
    const bool small = size <= 1 << 20;
    auto fit = best(size, stream, small);
    if (fit == blocks_.end()) {
      std::int64_t segment = small ? 2 << 20 : 20 << 20;
      if (size >= 10 << 20) segment = (size + (2 << 20) - 1) / (2 << 20) * (2 << 20);
      if (reserved + segment > capacity_) give_back();
      if (reserved + segment > capacity_) return -1;
      reserved += segment;
      peak_reserved = std::max(peak_reserved, reserved);
      blocks_.push_back({next_, segment, next_, stream, small, false});
      next_ += segment;
      fit = best(size, stream, small);
    }
    const Block whole = *fit;
    if (small ? whole.size - size >= 512 : whole.size - size > 1 << 20) {
      fit->size = size;
      blocks_.insert(std::next(fit), {whole.address + size, whole.size - size, whole.segment,
                                      stream, small, false});
    }
    fit->used = true;
    allocated += fit->size;
    peak_allocated = std::max(peak_allocated, allocated);
    return fit->address;
  }
  void free(std::int64_t address) {
    auto at = std::ranges::find(blocks_, address, &Block::address);
    at->used = false;
    allocated -= at->size;
    const auto joins = [&](auto left, auto right) {
      return left->segment == right->segment && !left->used && !right->used;
    };
    if (std::next(at) != blocks_.end() && joins(at, std::next(at))) {
      at->size += std::next(at)->size;
      blocks_.erase(std::next(at));
    }
    if (at != blocks_.begin() && joins(std::prev(at), at)) {
      std::prev(at)->size += at->size;
      blocks_.erase(at);
    }
  }
  std::int64_t allocated = 0, peak_allocated = 0, reserved = 0, peak_reserved = 0;

 private:
  struct Block {
    std::int64_t address, size, segment;
    int stream;
    bool small, used;
  };
  std::list<Block>::iterator best(std::int64_t size, int stream, bool small) {
    auto fit = blocks_.end();
    for (auto b = blocks_.begin(); b != blocks_.end(); ++b)
      if (!b->used && b->stream == stream && b->small == small && b->size >= size &&
          (fit == blocks_.end() || b->size < fit->size))
        fit = b;
    return fit;
  }
  void give_back() {
    for (auto b = blocks_.begin(); b != blocks_.end();) {
      const bool begins = b->address == b->segment;
      const bool ends = std::next(b) == blocks_.end() || std::next(b)->segment != b->segment;
      const bool goes = !b->used && begins && ends;
      if (goes) reserved -= b->size;
      b = goes ? blocks_.erase(b) : std::next(b);
    }
  }
  std::list<Block> blocks_;  // by address
  std::int64_t capacity_, next_ = 0;
};

}  // namespace

TEST_CASE("drawn requests: what a plain search of every block gives") {
  std::int64_t refused = 0;
  for (unsigned seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(seed);
    CAPTURE(seed);
    const std::int64_t capacity = (std::int64_t{100} + random() % 900) << 20;
    CachingAllocator allocator({.limit = Bytes(capacity)});
    Plain plain(capacity);
    std::vector<std::pair<CachingAllocator::Handle, std::int64_t>> held;
    for (int i = 0; i < 3000; ++i) {
      const auto what = random() % 100;
      if (what < 38 && !held.empty()) {
        const std::size_t k = random() % held.size();
        allocator.free(held[k].first);
        plain.free(held[k].second);
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(k));
      } else {
        // Few sizes, as in a step, at all scales, and some that hardly differ.
        const std::int64_t size =
            (std::int64_t{1} << (random() % 26)) * (1 + random() % 3) + 512 * (random() % 3);
        const int stream = random() % 4 == 0 ? 1 : 0;
        const auto on = stream == 0 ? Stream::compute : Stream::gather;
        const std::int64_t address = plain.allocate(size, stream);
        if (what >= 86) {  // and freed at once
          REQUIRE(allocator.allocate_and_free(Bytes(size), on) == (address >= 0));
          if (address >= 0) plain.free(address);
        } else {
          const auto block = allocator.allocate(Bytes(size), on);
          REQUIRE(block.has_value() == (address >= 0));
          if (block) held.emplace_back(*block, address);
        }
        refused += address < 0 ? 1 : 0;
      }
      REQUIRE(allocator.allocated() == Bytes(plain.allocated));
      REQUIRE(allocator.peak_allocated() == Bytes(plain.peak_allocated));
      REQUIRE(allocator.reserved() == Bytes(plain.reserved));
      REQUIRE(allocator.peak_reserved() == Bytes(plain.peak_reserved));
    }
    CHECK(plain.peak_reserved > capacity / 2);
  }
  CHECK(refused > 1000);
}
