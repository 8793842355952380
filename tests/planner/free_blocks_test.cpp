// The order of free blocks, against a sorted set of their sizes and addresses.
#include "planner/memory/free_blocks.h"

#include <doctest/doctest.h>

#include <limits>
#include <random>
#include <set>
#include <tuple>
#include <vector>

using namespace plimsoll;
using planner::Block;
using planner::Blocks;
using planner::FreeBlocks;

// Sizes of few classes, with several sizes in each and many equal ones, beside a few of all scales.
TEST_CASE("free blocks come and go in the order of size, then of address") {
  using Place = std::tuple<std::int64_t, std::int64_t, Block::Handle>;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    Blocks blocks;
    FreeBlocks free;
    std::set<Place> expected;
    const auto drawn_size = [&] {
      const std::int64_t round = std::int64_t{2048} << (random() % 4 == 0 ? random() % 40 : 10);
      return round + 512 * (static_cast<std::int64_t>(random() % 5) - 2);
    };
    for (int i = 0; i < 2000; ++i) {
      if (random() % 5 < 2 && !expected.empty()) {
        auto gone = expected.begin();
        std::advance(gone, random() % expected.size());
        free.erase(blocks, std::get<2>(*gone));
        blocks.drop(std::get<2>(*gone));
        expected.erase(gone);
      } else {
        const Block block{.size = drawn_size(), .address = (i * 7919 % 2003) * 512};
        const Block::Handle handle = blocks.make(block);
        free.insert(blocks, handle);
        expected.insert({block.size, block.address, handle});
      }
      const std::int64_t asked = drawn_size();
      const auto fit = expected.lower_bound({asked, -1, -1});
      REQUIRE(free.first_from(blocks, asked) == (fit == expected.end() ? -1 : std::get<2>(*fit)));
      if (i % 50 != 0) continue;
      Block::Handle next = free.first_from(blocks, 512);
      for (const Place& place : expected) {
        REQUIRE(next == std::get<2>(place));
        next = free.after(blocks, next);
      }
      REQUIRE(next == -1);
    }
  }
}

TEST_CASE("free blocks of the smallest and of the largest size") {
  Blocks blocks;
  FreeBlocks free;
  CHECK(free.first_from(blocks, 512) == -1);
  const auto large = blocks.make({.size = std::numeric_limits<std::int64_t>::max() - 511});
  const auto small = blocks.make({.size = 512});
  free.insert(blocks, large);
  free.insert(blocks, small);
  CHECK(free.first_from(blocks, 512) == small);
  CHECK(free.first_from(blocks, 1024) == large);
  CHECK(free.after(blocks, small) == large);
  CHECK(free.after(blocks, large) == -1);
}
