// The free blocks of one pool of a caching allocator, in the order of size, then of address.
//
// Blocks are linked into lists, one for each class of sizes: between two powers of two there are 16
// (segregated lists with a map of those that are not empty, as in M. Masmano et al., "TLSF: A new
// dynamic memory allocator for real-time systems", 2004; but each list is sorted, and so the whole
// order is exact). Few sizes are free at a time: most lists hold blocks of one.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "planner/memory/blocks.h"

namespace plimsoll::planner {

// `blocks` are all blocks, these among them. Sizes are at least 512 bytes.
class FreeBlocks {
 public:
  using Handle = Block::Handle;

  // The smallest that is no smaller than `size`, of equals the one at the lowest address; -1: none.
  Handle first_from(const Blocks& blocks, std::int64_t size) const {
    const unsigned list = class_of(size);
    for (Handle block = lists_[list].first; block >= 0; block = blocks[block].larger)
      if (blocks[block].size >= size) return block;
    return first_beyond(list);
  }
  // The one after it in the order; -1: it is the last.
  Handle after(const Blocks& blocks, Handle block) const {
    const Handle larger = blocks[block].larger;
    return larger >= 0 ? larger : first_beyond(blocks[block].size_class);
  }

  // Looked for from where the last one went, since neighbours come and go one after another.
  void insert(Blocks& blocks, Handle handle) {
    Block& block = blocks[handle];
    const unsigned number = class_of(block.size);
    List& list = lists_[number];
    Handle smaller = -1, larger = list.first;
    if (larger < 0) {
      level_[number / kPerLevel] |= static_cast<std::uint16_t>(1U << number % kPerLevel);
      levels_ |= std::uint64_t{1} << number / kPerLevel;
    } else if (before(blocks[list.latest], block)) {
      smaller = list.latest;
      while ((larger = blocks[smaller].larger) >= 0 && before(blocks[larger], block))
        smaller = larger;
    } else {
      larger = list.latest;
      while ((smaller = blocks[larger].smaller) >= 0 && !before(blocks[smaller], block))
        larger = smaller;
    }
    block.size_class = static_cast<std::uint16_t>(number);
    block.smaller = smaller;
    block.larger = larger;
    if (larger >= 0) blocks[larger].smaller = handle;
    (smaller >= 0 ? blocks[smaller].larger : list.first) = handle;
    list.latest = handle;
  }

  void erase(Blocks& blocks, Handle handle) {
    const Block& block = blocks[handle];
    const unsigned number = block.size_class;
    List& list = lists_[number];
    if (list.latest == handle) list.latest = block.smaller >= 0 ? block.smaller : block.larger;
    if (block.larger >= 0) blocks[block.larger].smaller = block.smaller;
    (block.smaller >= 0 ? blocks[block.smaller].larger : list.first) = block.larger;
    if (list.first >= 0) return;
    std::uint16_t& level = level_[number / kPerLevel];
    level &= static_cast<std::uint16_t>(~(1U << number % kPerLevel));
    if (level == 0) levels_ &= ~(std::uint64_t{1} << number / kPerLevel);
  }

 private:
  struct List {
    Handle first = -1;
    Handle latest = -1;  // that was inserted, or one beside it
  };
  static constexpr unsigned kPerLevel = 16, kLevels = 55;  // from 512 bytes to 2^63

  static bool before(const Block& a, const Block& b) {
    return a.size < b.size || (a.size == b.size && a.address < b.address);
  }
  // Round sizes are the last of their class: what is a little larger than the many blocks of such
  // a size is not looked for among them.
  static unsigned class_of(std::int64_t size) {
    const auto last = static_cast<std::uint64_t>(size - 1);
    const auto power = static_cast<unsigned>(std::bit_width(last)) - 1;
    // No size is below 512: power is at least 8.
    // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult)
    return (power - 8) * kPerLevel + static_cast<unsigned>(last >> (power - 4)) % kPerLevel;
  }
  Handle first_beyond(unsigned list) const {
    unsigned level = list / kPerLevel;
    unsigned lists = level_[level] & ~1U << list % kPerLevel;
    if (lists == 0) {
      const std::uint64_t levels = levels_ & ~std::uint64_t{1} << level;
      if (levels == 0) return -1;
      level = static_cast<unsigned>(std::countr_zero(levels));
      lists = level_[level];
    }
    return lists_[level * kPerLevel + static_cast<unsigned>(std::countr_zero(lists))].first;
  }

  std::uint64_t levels_ = 0;  // that have lists with blocks
  std::array<std::uint16_t, kLevels> level_{};  // of each: which
  std::array<List, std::size_t{kPerLevel} * kLevels> lists_;
};

}  // namespace plimsoll::planner
