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
  using Handle = std::int32_t;

  explicit CachingAllocator(Room room, const models::AllocatorConf& conf = {});
  // From now on one request in 4 finds the best-fitting block gone and takes the next larger.
  void be_unlucky() { unlucky_ = true; }

  // Nothing when the driver refuses, also after cached segments were released.
  std::optional<Handle> allocate(Bytes requested, models::Stream stream);
  void free(Handle block);
  // Both at once, which leaves the segments as they were where there is a block to take it from.
  // False: refused.
  bool allocate_and_free(Bytes requested, models::Stream stream);

  // What is asked of the driver where no cached block serves a request; the size that an
  // out-of-memory message prints.
  Bytes segment_for(Bytes requested) const;

  Bytes allocated() const { return Bytes(allocated_); }  // blocks in use, as memory_allocated()
  Bytes peak_allocated() const { return Bytes(peak_allocated_); }
  void reset_peak_allocated() { peak_allocated_ = allocated_; }
  Bytes reserved() const { return Bytes(reserved_); }  // segments, as memory_reserved()
  Bytes peak_reserved() const { return Bytes(peak_reserved_); }
  const DriverCalls& calls() const { return calls_; }

 private:
  struct Block {
    std::int64_t size = 0, address = 0;
    Handle previous = -1, next = -1;  // neighbours within the segment
    std::uint8_t pool = 0;
    bool used = false;
    bool mapped = true;  // else addresses of an expandable segment, without memory behind them
  };
  // Size and address as one number, so that looking for it takes no branch.
  __extension__ using Key = unsigned __int128;
  static Key key_of(std::int64_t size, std::int64_t address) {
    return Key{static_cast<std::uint64_t>(size)} << 64 | static_cast<std::uint64_t>(address);
  }
  // Few and short-lived: a sorted row is faster than a tree.
  struct FreeRow {
    std::vector<Key> keys;  // ascending
    std::vector<Handle> blocks;  // of each
    std::size_t place_of(const Block& block) const {
      return first_from(key_of(block.size, block.address));
    }
    std::size_t first_from(Key key) const { return first_from(key, 0, keys.size()); }
    std::size_t first_from(Key key, std::size_t begin, std::size_t end) const;
    bool has(std::int64_t size) const { return !keys.empty() && keys.back() >= key_of(size, 0); }
    void insert(const Block& block, Handle handle);
    void erase(std::size_t place);
    // Another block in the place of one, where all between them move by one.
    void replace_by_smaller(std::size_t place, const Block& block, Handle handle);
    void replace_by_larger(std::size_t place, const Block& block, Handle handle);
  };

  Block& at(Handle block) { return blocks_[static_cast<std::size_t>(block)]; }
  const Block& at(Handle block) const { return blocks_[static_cast<std::size_t>(block)]; }
  bool is_free(Handle block) const { return block >= 0 && !at(block).used && at(block).mapped; }
  std::int64_t rounded_up(Bytes requested) const;
  // Where in the row the block is that serves a request; its end where none does.
  std::size_t place_for(const FreeRow& row, std::int64_t rounded) const;
  // Whether, by bad luck, the one after it has to serve.
  bool misses(std::size_t place, const FreeRow& row);
  Handle make_block(const Block& block);
  bool is_room_for(std::int64_t bytes) const;
  // From the driver, at most after segments were given back: a block in no row.
  std::optional<Handle> from_driver(std::int64_t rounded, std::uint8_t pool);
  std::optional<Handle> new_segment(std::int64_t rounded, std::uint8_t pool);
  void count_malloc(std::int64_t bytes);
  void count_free(std::int64_t bytes);
  bool release_available_segments(std::int64_t rounded, std::uint8_t pool);
  void release_cached_segments();
  // Whether what is left of a block is too little to split it off.
  bool stays_whole(std::int64_t rounded, std::int64_t rest) const;
  Handle split(Handle block, std::int64_t size);
  Handle merge(Handle left, Handle right);

  // Expandable segments (expandable_segments.cpp).
  std::int64_t expandable_size(Handle block) const;
  std::size_t expandable_place(const FreeRow& row, std::size_t place) const;
  std::optional<Handle> expand(std::int64_t rounded, std::uint8_t pool);
  Handle expandable_block(std::int64_t rounded, std::uint8_t pool);
  std::optional<Handle> map(Handle block, std::int64_t bytes);
  void unmap(Handle block);
  void add_unmapped(Handle block);
  void drop_unmapped(Handle block);
  static constexpr std::size_t kPools = 8;  // four streams, small and large

  models::AllocatorConf conf_;
  bool rounds_to_steps_;
  bool takes_first_fit_;  // any block that is large enough serves, and the smallest does
  Room room_;
  bool unlucky_ = false;
  std::uint64_t luck_ = 0;  // how far the row of random numbers is
  std::vector<Block> blocks_;
  std::vector<Handle> unused_;  // slots of merged or released blocks
  FreeRow free_[kPools];
  std::vector<Handle> unmapped_[kPools];  // of expandable segments, by address
  std::int64_t next_address_ = 0;
  DriverCalls calls_;
  std::int64_t allocated_ = 0, peak_allocated_ = 0, reserved_ = 0, peak_reserved_ = 0;
};

}  // namespace plimsoll::planner
