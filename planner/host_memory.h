// What one rank keeps in its host's memory.
#pragma once

#include <bit>

#include "models/base/quantity.h"

namespace plimsoll::planner {

// torch 2.11.0, ATen/core/CachingHostAllocator.h: pinned memory comes in powers of two, of any
// size, and what is given back stays pinned in its cache.
inline Bytes pinned_block(Bytes bytes) {
  return bytes == Bytes(0) ? bytes
                           : Bytes(static_cast<std::int64_t>(
                                 std::bit_ceil(static_cast<std::uint64_t>(bytes.value()))));
}

struct HostMemory {
  Bytes pinned, pageable;  // in steady training
  Bytes nvme;  // in files
  void pin(Bytes bytes) { pinned += pinned_block(bytes); }
  void add(Bytes bytes, bool pin_it) { pin_it ? pin(bytes) : page(bytes); }
  void lock(Bytes bytes) { pinned += bytes; }  // by mlock, of the size that was asked for
  void page(Bytes bytes) { pageable += bytes; }
  Bytes total() const { return pinned + pageable; }
};

}  // namespace plimsoll::planner
