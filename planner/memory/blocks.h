// The blocks of a caching allocator, by handle: pieces of segments, each with its neighbours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace plimsoll::planner {

struct Block {
  using Handle = std::int32_t;
  std::int64_t size = 0, address = 0;
  Handle previous = -1, next = -1;  // neighbours within the segment
  Handle smaller = -1, larger = -1;  // neighbours among free blocks of its class, where it is free
  std::uint16_t size_class = 0;
  std::uint8_t pool = 0;
  bool used = false;
  bool mapped = true;  // else addresses of an expandable segment, without memory behind them
};

class Blocks {
 public:
  using Handle = Block::Handle;

  Block& operator[](Handle block) { return all_[static_cast<std::size_t>(block)]; }
  const Block& operator[](Handle block) const { return all_[static_cast<std::size_t>(block)]; }
  bool is_free(Handle block) const {
    return block >= 0 && !(*this)[block].used && (*this)[block].mapped;
  }

  Handle make(const Block& block) {
    if (unused_.empty()) {
      all_.push_back(block);
      return static_cast<Handle>(all_.size() - 1);
    }
    const Handle handle = unused_.back();
    unused_.pop_back();
    (*this)[handle] = block;
    return handle;
  }
  void drop(Handle block) { unused_.push_back(block); }

  // What is left of it, as a block of its own.
  Handle split(Handle handle, std::int64_t size) {
    const Block& whole = (*this)[handle];
    const Handle next = whole.next;
    const Handle rest = make({.size = whole.size - size,
                              .address = whole.address + size,
                              .previous = handle,
                              .next = next,
                              .pool = whole.pool});
    if (next >= 0) (*this)[next].previous = rest;
    Block& first = (*this)[handle];
    first.next = rest;
    first.size = size;
    return rest;
  }

  // Joins two neighbours into the left one.
  Handle merge(Handle left, Handle right) {
    Block& joined = (*this)[left];
    const Block& gone = (*this)[right];
    joined.size += gone.size;
    joined.next = gone.next;
    if (gone.next >= 0) (*this)[gone.next].previous = left;
    drop(right);
    return left;
  }

 private:
  std::vector<Block> all_;
  std::vector<Handle> unused_;  // of blocks that are no more
};

}  // namespace plimsoll::planner
