#include "planner/memory/caching_allocator.h"

#include <algorithm>
#include <bit>

namespace plimsoll::planner {

namespace {
constexpr std::int64_t kMinBlock = 512;
constexpr std::int64_t kSmallSize = 1 << 20;  // up to here: small pool
constexpr std::int64_t kSmallBuffer = 2 << 20;  // its segments
constexpr std::int64_t kMinLargeAlloc = 10 << 20;
constexpr std::int64_t kLargeBuffer = 20 << 20;  // segments for requests in between
constexpr std::int64_t kRoundLarge = 2 << 20;
constexpr std::uint64_t kMissesOneIn = 4;  // see kUnluckySteps

// The next of a row of numbers (splitmix64, prng.di.unimi.it).
std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t z = state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// To one of so many steps from one power of two to the next (roundup_power2_next_division).
std::int64_t rounded_to_step(std::int64_t bytes, std::int64_t steps) {
  const auto size = static_cast<std::uint64_t>(bytes);
  if (std::has_single_bit(size)) return bytes;
  const std::uint64_t floor = std::bit_floor(size);
  const auto step = static_cast<std::int64_t>(floor / static_cast<std::uint64_t>(steps));
  if (step == 0) return static_cast<std::int64_t>(floor << 1);
  return checked_multiply(ceil_divide(bytes, step), step);
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

CachingAllocator::CachingAllocator(Room room, const models::AllocatorConf& conf)
    : conf_(conf),
      rounds_to_steps_(conf.roundup_power2_divisions !=
                       models::AllocatorConf().roundup_power2_divisions),
      takes_first_fit_(!conf.expandable_segments && !conf.max_split_size),
      room_(room) {}

std::int64_t CachingAllocator::rounded_up(Bytes requested) const {
  const std::int64_t size = requested.value();
  if (rounds_to_steps_ && size > kMinBlock) {
    const std::int64_t steps = conf_.divisions_of(size);
    if (steps > 1 && size > kMinBlock * steps) return rounded_to_step(size, steps);
  }
  return std::max<std::int64_t>(kMinBlock, round_up(requested, kMinBlock).value());
}

Bytes CachingAllocator::segment_for(Bytes requested) const {
  return Bytes(segment_size(rounded_up(requested)));
}

std::size_t CachingAllocator::place_for(const FreeRow& row, std::int64_t rounded) const {
  const std::size_t place = row.first_from(key_of(rounded, 0));
  const std::size_t none = row.keys.size();
  if (takes_first_fit_ || place == none) return place;
  if (conf_.expandable_segments) return expandable_place(row, place);
  const std::int64_t size = at(row.blocks[place]).size, large = conf_.max_split_size->value();
  const bool serves = rounded < large
                          ? size < large
                          : size < checked_add(rounded, conf_.max_non_split_rounding.value());
  return serves ? place : none;
}

bool CachingAllocator::misses(std::size_t place, const FreeRow& row) {
  return unlucky_ && place + 1 < row.keys.size() && next_random(luck_) % kMissesOneIn == 0;
}

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

bool CachingAllocator::is_room_for(std::int64_t bytes) const {
  return !room_.limit || checked_add(reserved_, bytes) <= room_.limit->value();
}

std::optional<CachingAllocator::Handle> CachingAllocator::new_segment(std::int64_t rounded,
                                                                      std::uint8_t pool) {
  const std::int64_t size = segment_size(rounded);
  if (!is_room_for(size)) return std::nullopt;
  count_malloc(size);
  const Handle block = make_block({.size = size, .address = next_address_, .pool = pool});
  next_address_ += size;
  return block;
}

std::optional<CachingAllocator::Handle> CachingAllocator::from_driver(std::int64_t rounded,
                                                                      std::uint8_t pool) {
  const auto attempt = [&] {
    return conf_.expandable_segments ? expand(rounded, pool) : new_segment(rounded, pool);
  };
  if (const auto block = attempt()) return block;
  if (!room_.may_flush) return std::nullopt;
  ++calls_.flushes;
  if (conf_.max_split_size && release_available_segments(rounded, pool))
    if (const auto block = attempt()) return block;
  release_cached_segments();
  return attempt();
}

void CachingAllocator::count_malloc(std::int64_t bytes) {
  ++calls_.mallocs;
  calls_.malloced += Bytes(bytes);
  reserved_ += bytes;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
}

void CachingAllocator::count_free(std::int64_t bytes) {
  ++calls_.frees;
  calls_.freed += Bytes(bytes);
  reserved_ -= bytes;
}

// Large segments of one pool, only so many as the request needs (release_available_cached_blocks).
bool CachingAllocator::release_available_segments(std::int64_t rounded, std::uint8_t pool) {
  FreeRow& row = free_[pool];
  const std::int64_t large = conf_.max_split_size->value();
  const std::int64_t wanted = std::max(rounded, large);
  const auto release = [&](std::size_t place) {
    const Handle block = row.blocks[place];
    count_free(at(block).size);
    unused_.push_back(block);
    row.erase(place);
    return at(block).size;
  };
  if (const std::size_t fit = row.first_from(key_of(wanted, 0)); fit < row.keys.size()) {
    release(fit);
    return true;
  }
  std::int64_t released = 0;
  while (released < wanted && row.has(large)) released += release(row.keys.size() - 1);
  return released >= wanted;
}

// cudaFree of every segment that is one free block (release_cached_blocks), or all free pages.
void CachingAllocator::release_cached_segments() {
  if (conf_.expandable_segments) {
    std::vector<Handle> cached;
    for (const FreeRow& pool : free_)
      cached.insert(cached.end(), pool.blocks.begin(), pool.blocks.end());
    for (const Handle block : cached) unmap(block);
    return;
  }
  for (FreeRow& pool : free_) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < pool.keys.size(); ++i) {
      const Block& block = at(pool.blocks[i]);
      if (block.previous < 0 && block.next < 0) {
        count_free(block.size);
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

bool CachingAllocator::stays_whole(std::int64_t rounded, std::int64_t rest) const {
  if (rounded <= kSmallSize || conf_.expandable_segments) return rest < kMinBlock;
  return rest <= kSmallSize || (conf_.max_split_size && rounded >= conf_.max_split_size->value());
}

// What is left of it, as a block of its own.
CachingAllocator::Handle CachingAllocator::split(Handle handle, std::int64_t size) {
  const Block whole = at(handle);
  const Handle rest = make_block({.size = whole.size - size,
                                  .address = whole.address + size,
                                  .previous = handle,
                                  .next = whole.next,
                                  .pool = whole.pool});
  if (whole.next >= 0) at(whole.next).previous = rest;
  Block& first = at(handle);
  first.next = rest;
  first.size = size;
  return rest;
}

std::optional<CachingAllocator::Handle> CachingAllocator::allocate(Bytes requested,
                                                                   models::Stream stream) {
  const std::int64_t rounded = rounded_up(requested);
  const std::uint8_t pool = pool_of(rounded, stream);
  FreeRow& row = free_[pool];
  std::size_t fit = place_for(row, rounded);
  const bool cached = fit < row.keys.size();
  Handle handle = -1;
  if (cached) {
    fit += misses(fit, row) ? 1 : 0;
    handle = row.blocks[fit];
  } else {
    const std::optional<Handle> block = from_driver(rounded, pool);
    if (!block) return std::nullopt;
    handle = *block;
  }
  if (!stays_whole(rounded, at(handle).size - rounded)) {
    const Handle tail = split(handle, rounded);
    const Block& left = at(tail);
    if (cached)
      row.replace_by_smaller(fit, left, tail);
    else
      row.insert(left, tail);
  } else if (cached) {
    row.erase(fit);
  }
  Block& block = at(handle);
  block.used = true;
  allocated_ += block.size;
  peak_allocated_ = std::max(peak_allocated_, allocated_);
  return handle;
}

bool CachingAllocator::allocate_and_free(Bytes requested, models::Stream stream) {
  const std::int64_t rounded = rounded_up(requested);
  const FreeRow& row = free_[pool_of(rounded, stream)];
  if (takes_first_fit_ && row.has(rounded)) {
    if (allocated_ + rounded + kSmallSize <= peak_allocated_) return true;  // whole or split
    const Handle fit = row.blocks[row.first_from(key_of(rounded, 0))];
    const std::int64_t size = at(fit).size;
    const bool whole = stays_whole(rounded, size - rounded);
    peak_allocated_ = std::max(peak_allocated_, allocated_ + (whole ? size : rounded));
    return true;
  }
  const std::optional<Handle> block = allocate(requested, stream);
  if (block) free(*block);
  return block.has_value();
}

// Joins two neighbouring blocks into the left one.
CachingAllocator::Handle CachingAllocator::merge(Handle left, Handle right) {
  Block& l = at(left);
  const Block r = at(right);
  l.size += r.size;
  l.next = r.next;
  if (r.next >= 0) at(r.next).previous = left;
  unused_.push_back(right);
  return left;
}

// The block joins free neighbours: the larger one of its place in the row, if any, moves up.
void CachingAllocator::free(Handle handle) {
  at(handle).used = false;
  allocated_ -= at(handle).size;
  FreeRow& row = free_[at(handle).pool];
  constexpr std::size_t none = ~std::size_t{0};
  std::size_t place = none;
  if (const Handle left = at(handle).previous; is_free(left)) {
    place = row.place_of(at(left));
    handle = merge(left, handle);
  }
  if (const Handle right = at(handle).next; is_free(right)) {
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
