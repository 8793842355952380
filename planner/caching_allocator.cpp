#include "planner/caching_allocator.h"

#include <algorithm>

namespace plimsoll::planner {

namespace {
constexpr std::int64_t kMinBlock = 512;
constexpr std::int64_t kSmallSize = 1 << 20;  // up to here: small pool
constexpr std::int64_t kSmallBuffer = 2 << 20;  // its segments
constexpr std::int64_t kMinLargeAlloc = 10 << 20;
constexpr std::int64_t kLargeBuffer = 20 << 20;  // segments for requests in between
constexpr std::int64_t kRoundLarge = 2 << 20;

std::int64_t rounded_up(Bytes requested) {
  return std::max<std::int64_t>(kMinBlock, round_up(requested, kMinBlock).value());
}

// Of a stream: for small requests and for large ones.
std::uint8_t pool_of(std::int64_t rounded, models::Stream stream) {
  return static_cast<std::uint8_t>(static_cast<std::uint8_t>(stream) * 2 +
                                   (rounded <= kSmallSize ? 0 : 1));
}

std::int64_t segment_size(std::int64_t rounded) {
  if (rounded <= kSmallSize) return kSmallBuffer;
  if (rounded < kMinLargeAlloc) return kLargeBuffer;
  return checked_multiply(ceil_divide(rounded, kRoundLarge), kRoundLarge);
}
}  // namespace

std::size_t CachingAllocator::FreeRow::first_from(Key key, std::size_t begin,
                                                  std::size_t end) const {
  const Key* first = keys.data() + begin;
  for (std::size_t n = end - begin; n > 0;) {
    const std::size_t half = (n + 1) / 2;
    first += half & (std::size_t{0} - static_cast<std::size_t>(first[half - 1] < key));
    n -= half;
  }
  return static_cast<std::size_t>(first - keys.data());
}

void CachingAllocator::FreeRow::insert(const Block& block, Handle handle) {
  const Key key = key_of(block.size, block.address);
  const auto at = static_cast<std::ptrdiff_t>(first_from(key));
  keys.insert(keys.begin() + at, key);
  blocks.insert(blocks.begin() + at, handle);
}

void CachingAllocator::FreeRow::erase(std::size_t place) {
  keys.erase(keys.begin() + static_cast<std::ptrdiff_t>(place));
  blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(place));
}

void CachingAllocator::FreeRow::replace_by_smaller(std::size_t place, const Block& block,
                                                   Handle handle) {
  const Key key = key_of(block.size, block.address);
  const std::size_t to = first_from(key, 0, place);
  std::copy_backward(keys.data() + to, keys.data() + place, keys.data() + place + 1);
  std::copy_backward(blocks.data() + to, blocks.data() + place, blocks.data() + place + 1);
  keys[to] = key;
  blocks[to] = handle;
}

void CachingAllocator::FreeRow::replace_by_larger(std::size_t place, const Block& block,
                                                  Handle handle) {
  const Key key = key_of(block.size, block.address);
  const std::size_t to = first_from(key, place + 1, keys.size()) - 1;
  std::copy(keys.data() + place + 1, keys.data() + to + 1, keys.data() + place);
  std::copy(blocks.data() + place + 1, blocks.data() + to + 1, blocks.data() + place);
  keys[to] = key;
  blocks[to] = handle;
}

CachingAllocator::Handle CachingAllocator::make_block(const Block& block) {
  if (unused_.empty()) {
    blocks_.push_back(block);
    return static_cast<Handle>(blocks_.size() - 1);
  }
  const Handle handle = unused_.back();
  unused_.pop_back();
  blocks_[static_cast<std::size_t>(handle)] = block;
  return handle;
}

std::optional<CachingAllocator::Handle> CachingAllocator::new_segment(std::int64_t rounded,
                                                                      std::uint8_t pool) {
  const std::int64_t size = segment_size(rounded);
  const auto is_room = [&] {
    return !room_.limit || checked_add(reserved_, size) <= room_.limit->value();
  };
  if (!is_room()) {
    if (!room_.may_flush) return std::nullopt;
    release_cached_segments();
    if (!is_room()) return std::nullopt;
  }
  ++calls_.mallocs;
  calls_.malloced += Bytes(size);
  reserved_ += size;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
  const Handle block = make_block({.size = size, .address = next_address_, .pool = pool});
  next_address_ += size;
  return block;
}

// cudaFree of every segment that is one free block (release_cached_blocks).
void CachingAllocator::release_cached_segments() {
  ++calls_.flushes;
  for (FreeRow& pool : free_) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < pool.keys.size(); ++i) {
      const Block& block = blocks_[static_cast<std::size_t>(pool.blocks[i])];
      if (block.previous < 0 && block.next < 0) {
        ++calls_.frees;
        calls_.freed += Bytes(block.size);
        reserved_ -= block.size;
        unused_.push_back(pool.blocks[i]);
        continue;
      }
      pool.keys[kept] = pool.keys[i];
      pool.blocks[kept++] = pool.blocks[i];
    }
    pool.keys.resize(kept);
    pool.blocks.resize(kept);
  }
}

bool CachingAllocator::stays_whole(std::int64_t rest, bool small) {
  return small ? rest < kMinBlock : rest <= kSmallSize;
}

// What is left of it, as a block of its own.
CachingAllocator::Handle CachingAllocator::split(Handle handle, std::int64_t rounded) {
  const Block whole = blocks_[static_cast<std::size_t>(handle)];
  const Handle rest = make_block({.size = whole.size - rounded,
                                  .address = whole.address + rounded,
                                  .previous = handle,
                                  .next = whole.next,
                                  .pool = whole.pool});
  if (whole.next >= 0) blocks_[static_cast<std::size_t>(whole.next)].previous = rest;
  Block& first = blocks_[static_cast<std::size_t>(handle)];
  first.next = rest;
  first.size = rounded;
  return rest;
}

std::optional<CachingAllocator::Handle> CachingAllocator::allocate(Bytes requested,
                                                                   models::Stream stream) {
  const std::int64_t rounded = rounded_up(requested);
  const std::uint8_t pool = pool_of(rounded, stream);
  FreeRow& row = free_[pool];
  const std::size_t fit = row.first_from(key_of(rounded, 0));
  const bool cached = fit < row.keys.size();
  Handle handle = -1;
  if (cached) {
    handle = row.blocks[fit];
  } else {
    const std::optional<Handle> segment = new_segment(rounded, pool);
    if (!segment) return std::nullopt;
    handle = *segment;
  }
  const std::int64_t rest = blocks_[static_cast<std::size_t>(handle)].size - rounded;
  if (!stays_whole(rest, rounded <= kSmallSize)) {
    const Handle tail = split(handle, rounded);
    const Block& left = blocks_[static_cast<std::size_t>(tail)];
    if (cached)
      row.replace_by_smaller(fit, left, tail);
    else
      row.insert(left, tail);
  } else if (cached) {
    row.erase(fit);
  }
  Block& block = blocks_[static_cast<std::size_t>(handle)];
  block.used = true;
  allocated_ += block.size;
  peak_allocated_ = std::max(peak_allocated_, allocated_);
  return handle;
}

bool CachingAllocator::allocate_and_free(Bytes requested, models::Stream stream) {
  const std::int64_t rounded = rounded_up(requested);
  const FreeRow& row = free_[pool_of(rounded, stream)];
  if (row.has(rounded)) {
    if (allocated_ + rounded + kSmallSize <= peak_allocated_) return true;  // whole or split
    const Handle fit = row.blocks[row.first_from(key_of(rounded, 0))];
    const std::int64_t size = blocks_[static_cast<std::size_t>(fit)].size;
    const bool whole = stays_whole(size - rounded, rounded <= kSmallSize);
    peak_allocated_ = std::max(peak_allocated_, allocated_ + (whole ? size : rounded));
    return true;
  }
  const std::optional<Handle> block = allocate(requested, stream);
  if (block) free(*block);
  return block.has_value();
}

// Joins two neighbouring blocks into the left one.
CachingAllocator::Handle CachingAllocator::merge(Handle left, Handle right) {
  Block& l = blocks_[static_cast<std::size_t>(left)];
  const Block r = blocks_[static_cast<std::size_t>(right)];
  l.size += r.size;
  l.next = r.next;
  if (r.next >= 0) blocks_[static_cast<std::size_t>(r.next)].previous = left;
  unused_.push_back(right);
  return left;
}

// The block joins free neighbours: the larger one of its place in the row, if any, moves up.
void CachingAllocator::free(Handle handle) {
  const auto at = [&](Handle h) -> Block& { return blocks_[static_cast<std::size_t>(h)]; };
  at(handle).used = false;
  allocated_ -= at(handle).size;
  FreeRow& row = free_[at(handle).pool];
  constexpr std::size_t none = ~std::size_t{0};
  std::size_t place = none;
  if (const Handle left = at(handle).previous; left >= 0 && !at(left).used) {
    place = row.place_of(at(left));
    handle = merge(left, handle);
  }
  if (const Handle right = at(handle).next; right >= 0 && !at(right).used) {
    const std::size_t of_right = row.place_of(at(right));
    if (place != none) {
      row.erase(place);
      place = of_right - (place < of_right ? 1 : 0);
    } else {
      place = of_right;
    }
    handle = merge(handle, right);
  }
  if (place == none)
    row.insert(at(handle), handle);
  else
    row.replace_by_larger(place, at(handle), handle);
}

}  // namespace plimsoll::planner
