// torch's CUDACachingAllocator, replayed: which segments a trace of requests makes it reserve.
//
// Source: pytorch c10/cuda/CUDACachingAllocator.cpp (torch 2.11). Without settings: requests are
// rounded up to 512 B; up to 1 MiB they come from 2 MiB segments, below 10 MiB from 20 MiB
// segments, above from segments of their own size rounded up to 2 MiB. The best-fitting free block
// of the same stream and pool is taken and split where more than 512 B (small pool) or more than 1
// MiB (large pool) would be left. A miss near the capacity gives all wholly free segments back to
// the driver and tries once more. Settings (PYTORCH_CUDA_ALLOC_CONF): models/allocator_conf.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "models/allocator_conf.h"
#include "models/base/quantity.h"
#include "models/step_program.h"
#include "planner/memory/free_blocks.h"

namespace plimsoll::planner {

// What segments may take.
struct Room {
  std::optional<Bytes> limit;  // of bytes that the driver grants; absent: no end
  bool may_flush = true;  // near it, give cached segments back; else refuse at once
};

// What an allocator asked of the driver, and what it gave back to it to have room.
struct DriverCalls {
  std::int64_t flushes = 0;  // torch.cuda.memory_stats()["num_alloc_retries"]
  std::int64_t mallocs = 0, frees = 0;
  Bytes malloced, freed;
};

class CachingAllocator {
 public:
  using Handle = Block::Handle;

  explicit CachingAllocator(Room room, const models::AllocatorConf& conf = {});
  // From now on one request in 4 finds the best-fitting block gone and takes the next larger.
  void be_unlucky() { unlucky_ = true; }

  // Nothing when the driver refuses, also after cached segments were released.
  std::optional<Handle> allocate(Bytes requested, models::Stream stream);
  void free(Handle block);
  // Blocks that are in no sum of blocks in use, and such a sum without a block.
  std::optional<Handle> allocate_uncounted(Bytes requested, models::Stream stream);
  void free_uncounted(Handle block);
  void count(Bytes requested) { add_allocated(rounded_up(requested)); }
  void discount(Bytes requested) { allocated_ -= rounded_up(requested); }
  // Both at once, which leaves the segments as they were where there is a block to take it from.
  // False: refused.
  bool allocate_and_free(Bytes requested, models::Stream stream);

  // What is asked of the driver where no cached block serves a request; the size that an
  // out-of-memory message prints.
  Bytes segment_for(Bytes requested) const;

  Bytes allocated() const { return Bytes(allocated_); }  // blocks in use, as memory_allocated()
  Bytes peak_allocated() const { return Bytes(peak_allocated_); }
  void reset_peak_allocated() { peak_allocated_ = allocated_; }
  void reset_peaks();
  void empty_cache() { release_cached_segments(); }  // torch.cuda.empty_cache()
  Bytes reserved() const { return Bytes(reserved_); }  // segments, as memory_reserved()
  Bytes peak_reserved() const { return Bytes(peak_reserved_); }
  const DriverCalls& calls() const { return calls_; }
  // The least limit under which the driver would have granted something that it refused; nothing
  // where it refused nothing. Under every limit below it all would have happened as it did.
  std::optional<Bytes> next_limit() const { return next_limit_; }

 private:
  Block& at(Handle block) { return blocks_[block]; }
  const Block& at(Handle block) const { return blocks_[block]; }
  std::int64_t rounded_up(Bytes requested) const {
    if (rounds_to_steps_) return rounded_to_steps(requested);
    return std::max(kMinBlock, checked_add(requested.value(), kMinBlock - 1) & -kMinBlock);
  }
  std::int64_t rounded_to_steps(Bytes requested) const;
  // Of a stream: for small requests and for large ones.
  std::uint8_t pool_of(std::int64_t rounded, models::Stream stream);
  std::uint8_t pool_of_next(bool large);
  static std::int64_t segment_size(std::int64_t rounded);
  Handle first_from(const FreeBlocks& pool, std::int64_t size) const {
    return pool.first_from(blocks_, size);
  }
  FreeBlocks& free_in(std::uint8_t pool) {
    return pool < kPools ? free_[pool] : beside_[pool - kPools];
  }
  void insert(Handle block) { free_in(at(block).pool).insert(blocks_, block); }
  void erase(Handle block) { free_in(at(block).pool).erase(blocks_, block); }
  // The free block that serves a request; -1: none does.
  Handle cached_for(const FreeBlocks& pool, std::int64_t rounded);
  // By bad luck the one after it has to serve.
  Handle by_luck(const FreeBlocks& pool, Handle block);
  bool is_room_for(std::int64_t bytes);
  // From the driver, at most after segments were given back: a block in no list.
  std::optional<Handle> from_driver(std::int64_t rounded, std::uint8_t pool);
  std::optional<Handle> new_segment(std::int64_t rounded, std::uint8_t pool);
  void count_malloc(std::int64_t bytes);
  void count_free(std::int64_t bytes);
  bool release_available_segments(std::int64_t rounded, std::uint8_t pool);
  void release_cached_segments();
  void give_back(Handle segment);  // that is one free block
  // Free blocks of at least so many bytes, in their order.
  std::vector<Handle> all_from(const FreeBlocks& pool, std::int64_t size) const;
  // Whether what is left of a block is too little to split it off.
  bool stays_whole(std::int64_t rounded, std::int64_t rest) const {
    if (rounded <= kSmallSize || conf_.expandable_segments) return rest < kMinBlock;
    return rest <= kSmallSize || rounded >= least_unsplit_;
  }

  void add_allocated(std::int64_t bytes);

  // Expandable segments (expandable_segments.cpp).
  std::int64_t expandable_size(Handle block) const;
  Handle expandable_fit(const FreeBlocks& pool, Handle block) const;
  std::optional<Handle> expand(std::int64_t rounded, std::uint8_t pool);
  Handle expandable_block(std::int64_t rounded, std::uint8_t pool);
  std::optional<Handle> map(Handle block, std::int64_t bytes);
  void unmap(Handle block);
  void add_unmapped(Handle block);
  void drop_unmapped(Handle block);
  static constexpr std::size_t kPools = 8;  // four streams, small and large
  // c10/cuda/CUDAStream.cpp, kStreamsPerPool: torch.cuda.Stream() hands them out in turn.
  static constexpr std::uint8_t kStreamsInTurn = 32;

  static constexpr std::int64_t kMinBlock = 512;
  static constexpr std::int64_t kSmallSize = 1 << 20;  // up to here: small pool

  models::AllocatorConf conf_;
  std::int64_t least_unsplit_;  // a request that its block is not split for
  bool rounds_to_steps_;
  bool takes_first_fit_;  // any block that is large enough serves, and the smallest does
  Room room_;
  bool unlucky_ = false;
  std::uint64_t luck_ = 0;  // how far the row of random numbers is
  Blocks blocks_;
  FreeBlocks free_[kPools];
  std::vector<FreeBlocks> beside_;  // of streams in turn, as many as were asked for
  std::uint8_t turn_ = 0;
  // Of expandable segments, by address.
  std::vector<Handle> unmapped_[kPools + 2 * std::size_t{kStreamsInTurn}];
  std::int64_t next_address_ = 0;
  DriverCalls calls_;
  std::optional<Bytes> next_limit_;
  std::int64_t allocated_ = 0, peak_allocated_ = 0, reserved_ = 0, peak_reserved_ = 0;
};

}  // namespace plimsoll::planner
