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

std::int64_t segment_size(std::int64_t rounded) {
  if (rounded <= kSmallSize) return kSmallBuffer;
  if (rounded < kMinLargeAlloc) return kLargeBuffer;
  return checked_multiply(ceil_divide(rounded, kRoundLarge), kRoundLarge);
}
}  // namespace

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
  if (capacity_ && checked_add(reserved_, size) > capacity_->value()) {
    release_cached_segments();
    if (checked_add(reserved_, size) > capacity_->value()) return std::nullopt;
  }
  reserved_ += size;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
  const Handle block = make_block({.size = size, .address = next_address_, .pool = pool});
  next_address_ += size;
  return block;
}

// cudaFree of every segment that is one free block (release_cached_blocks).
void CachingAllocator::release_cached_segments() {
  for (FreeRow& pool : free_)
    std::erase_if(pool.keys, [&](const FreeKey& key) {
      const Block& block = blocks_[static_cast<std::size_t>(key.block)];
      if (block.previous >= 0 || block.next >= 0) return false;
      reserved_ -= block.size;
      unused_.push_back(key.block);
      return true;
    });
}

void CachingAllocator::split(Handle handle, std::int64_t rounded, bool small) {
  Block& block = blocks_[static_cast<std::size_t>(handle)];
  const std::int64_t rest = block.size - rounded;
  if (small ? rest < kMinBlock : rest <= kSmallSize) return;
  const Handle remainder = make_block({.size = rest,
                                       .address = block.address + rounded,
                                       .previous = handle,
                                       .next = block.next,
                                       .pool = block.pool});
  Block& first = blocks_[static_cast<std::size_t>(handle)];  // make_block may have moved it
  if (first.next >= 0) blocks_[static_cast<std::size_t>(first.next)].previous = remainder;
  first.next = remainder;
  first.size = rounded;
  const Block& tail = blocks_[static_cast<std::size_t>(remainder)];
  free_[tail.pool].insert({tail.size, tail.address, remainder});
}

std::optional<CachingAllocator::Handle> CachingAllocator::allocate(Bytes requested,
                                                                   models::Stream stream) {
  const std::int64_t rounded =
      std::max<std::int64_t>(kMinBlock, round_up(requested, kMinBlock).value());
  const bool small = rounded <= kSmallSize;
  const auto pool =
      static_cast<std::uint8_t>(static_cast<std::uint8_t>(stream) * 2 + (small ? 0 : 1));
  Handle handle = -1;
  FreeRow& row = free_[pool];
  const auto fit = row.first_from({rounded, -1, -1});
  if (fit != row.keys.end()) {
    handle = fit->block;
    row.keys.erase(fit);
  } else {
    const std::optional<Handle> segment = new_segment(rounded, pool);
    if (!segment) return std::nullopt;
    handle = *segment;
  }
  split(handle, rounded, small);
  Block& block = blocks_[static_cast<std::size_t>(handle)];
  block.used = true;
  allocated_ += block.size;
  peak_allocated_ = std::max(peak_allocated_, allocated_);
  return handle;
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

void CachingAllocator::free(Handle handle) {
  const auto at = [&](Handle h) -> Block& { return blocks_[static_cast<std::size_t>(h)]; };
  at(handle).used = false;
  allocated_ -= at(handle).size;
  const auto take_out = [&](Handle h) { free_[at(h).pool].erase({at(h).size, at(h).address, h}); };
  if (const Handle left = at(handle).previous; left >= 0 && !at(left).used) {
    take_out(left);
    handle = merge(left, handle);
  }
  if (const Handle right = at(handle).next; right >= 0 && !at(right).used) {
    take_out(right);
    handle = merge(handle, right);
  }
  free_[at(handle).pool].insert({at(handle).size, at(handle).address, handle});
}

}  // namespace plimsoll::planner
