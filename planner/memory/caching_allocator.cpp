#include "planner/memory/caching_allocator.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace plimsoll::planner {

namespace {
constexpr std::int64_t kSmallBuffer = 2 << 20;  // segments of the small pool
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

}  // namespace

std::uint8_t CachingAllocator::pool_of_next(bool large) {
  const std::size_t pool = 2 * std::size_t{turn_} + (large ? 1 : 0);
  turn_ = static_cast<std::uint8_t>((turn_ + 1) % kStreamsInTurn);
  if (pool >= beside_.size()) beside_.resize(pool + 1);
  return static_cast<std::uint8_t>(kPools + pool);
}

std::uint8_t CachingAllocator::pool_of(std::int64_t rounded, models::Stream stream) {
  if (stream == models::Stream::next) return pool_of_next(rounded > kSmallSize);
  return static_cast<std::uint8_t>(static_cast<std::uint8_t>(stream) * 2 +
                                   (rounded <= kSmallSize ? 0 : 1));
}

std::int64_t CachingAllocator::segment_size(std::int64_t rounded) {
  if (rounded <= kSmallSize) return kSmallBuffer;
  if (rounded < kMinLargeAlloc) return kLargeBuffer;
  return checked_multiply(ceil_divide(rounded, kRoundLarge), kRoundLarge);
}

CachingAllocator::CachingAllocator(Room room, const models::AllocatorConf& conf)
    : conf_(conf),
      least_unsplit_(conf.max_split_size ? conf.max_split_size->value()
                                         : std::numeric_limits<std::int64_t>::max()),
      rounds_to_steps_(conf.roundup_power2_divisions !=
                       models::AllocatorConf().roundup_power2_divisions),
      takes_first_fit_(!conf.expandable_segments && !conf.max_split_size),
      room_(room) {}

std::int64_t CachingAllocator::rounded_to_steps(Bytes requested) const {
  const std::int64_t size = requested.value();
  const std::int64_t steps = size > kMinBlock ? conf_.divisions_of(size) : 1;
  if (steps > 1 && size > kMinBlock * steps) return rounded_to_step(size, steps);
  return std::max(kMinBlock, round_up(requested, kMinBlock).value());
}

Bytes CachingAllocator::segment_for(Bytes requested) const {
  return Bytes(segment_size(rounded_up(requested)));
}

CachingAllocator::Handle CachingAllocator::cached_for(const FreeBlocks& pool,
                                                      std::int64_t rounded) {
  const Handle fit = first_from(pool, rounded);
  if (fit < 0) return fit;
  if (takes_first_fit_) return by_luck(pool, fit);
  if (conf_.expandable_segments) return by_luck(pool, expandable_fit(pool, fit));
  const std::int64_t size = at(fit).size, large = conf_.max_split_size->value();
  const bool serves = rounded < large
                          ? size < large
                          : size < checked_add(rounded, conf_.max_non_split_rounding.value());
  return serves ? by_luck(pool, fit) : -1;
}

CachingAllocator::Handle CachingAllocator::by_luck(const FreeBlocks& pool, Handle block) {
  if (!unlucky_) return block;
  const Handle next = pool.after(blocks_, block);
  return next >= 0 && next_random(luck_) % kMissesOneIn == 0 ? next : block;
}

bool CachingAllocator::is_room_for(std::int64_t bytes) {
  const Bytes needed(checked_add(reserved_, bytes));
  if (!room_.limit || needed <= *room_.limit) return true;
  next_limit_ = next_limit_ ? std::min(*next_limit_, needed) : needed;
  return false;
}

std::optional<CachingAllocator::Handle> CachingAllocator::new_segment(std::int64_t rounded,
                                                                      std::uint8_t pool) {
  const std::int64_t size = segment_size(rounded);
  if (!is_room_for(size)) return std::nullopt;
  count_malloc(size);
  const Handle block = blocks_.make({.size = size, .address = next_address_, .pool = pool});
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

void CachingAllocator::reset_peaks() {
  reset_peak_allocated();
  peak_reserved_ = reserved_;
}

void CachingAllocator::add_allocated(std::int64_t bytes) {
  allocated_ += bytes;
  peak_allocated_ = std::max(peak_allocated_, allocated_);
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
  const std::int64_t large = conf_.max_split_size->value();
  const std::int64_t wanted = std::max(rounded, large);
  std::int64_t released = 0;
  const auto release = [&](Handle block) {
    released += at(block).size;
    give_back(block);
  };
  if (const Handle fit = first_from(free_in(pool), wanted); fit >= 0) {
    release(fit);
    return true;
  }
  const std::vector<Handle> cached = all_from(free_in(pool), large);
  for (auto block = cached.rbegin(); block != cached.rend() && released < wanted; ++block)
    release(*block);
  return released >= wanted;
}

std::vector<CachingAllocator::Handle> CachingAllocator::all_from(const FreeBlocks& pool,
                                                                 std::int64_t size) const {
  std::vector<Handle> blocks;
  for (Handle block = first_from(pool, size); block >= 0; block = pool.after(blocks_, block))
    blocks.push_back(block);
  return blocks;
}

void CachingAllocator::give_back(Handle segment) {
  count_free(at(segment).size);
  erase(segment);
  blocks_.drop(segment);
}

// cudaFree of every segment that is one free block (release_cached_blocks), or all free pages.
void CachingAllocator::release_cached_segments() {
  const auto release = [&](const FreeBlocks& pool) {
    for (const Handle block : all_from(pool, kMinBlock)) {
      if (conf_.expandable_segments)
        unmap(block);
      else if (at(block).previous < 0 && at(block).next < 0)
        give_back(block);
    }
  };
  for (const FreeBlocks& pool : free_) release(pool);
  for (const FreeBlocks& pool : beside_) release(pool);
}

std::optional<CachingAllocator::Handle> CachingAllocator::allocate(Bytes requested,
                                                                   models::Stream stream) {
  const std::optional<Handle> block = allocate_uncounted(requested, stream);
  if (block) add_allocated(at(*block).size);
  return block;
}

std::optional<CachingAllocator::Handle> CachingAllocator::allocate_uncounted(
    Bytes requested, models::Stream stream) {
  const std::int64_t rounded = rounded_up(requested);
  const std::uint8_t pool = pool_of(rounded, stream);
  Handle handle = cached_for(free_in(pool), rounded);
  if (handle >= 0) {
    erase(handle);
  } else {
    const std::optional<Handle> block = from_driver(rounded, pool);
    if (!block) return std::nullopt;
    handle = *block;
  }
  if (!stays_whole(rounded, at(handle).size - rounded)) insert(blocks_.split(handle, rounded));
  at(handle).used = true;
  return handle;
}

bool CachingAllocator::allocate_and_free(Bytes requested, models::Stream stream) {
  const std::int64_t rounded = rounded_up(requested);
  const bool looks = takes_first_fit_ && stream != models::Stream::next;
  const Handle fit = looks ? first_from(free_[pool_of(rounded, stream)], rounded) : Handle{-1};
  if (fit >= 0) {
    const std::int64_t size = at(fit).size;
    const bool whole = stays_whole(rounded, size - rounded);
    peak_allocated_ = std::max(peak_allocated_, allocated_ + (whole ? size : rounded));
    return true;
  }
  const std::optional<Handle> block = allocate(requested, stream);
  if (block) free(*block);
  return block.has_value();
}

void CachingAllocator::free(Handle handle) {
  allocated_ -= at(handle).size;
  free_uncounted(handle);
}

void CachingAllocator::free_uncounted(Handle handle) {
  at(handle).used = false;
  if (const Handle left = at(handle).previous; blocks_.is_free(left)) {
    erase(left);
    handle = blocks_.merge(left, handle);
  }
  if (const Handle right = at(handle).next; blocks_.is_free(right)) {
    erase(right);
    handle = blocks_.merge(handle, right);
  }
  insert(handle);
}

}  // namespace plimsoll::planner
