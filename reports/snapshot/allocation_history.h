// The events of a snapshot as lives of allocations, and what the allocator held at each moment.
#pragma once

#include <vector>

#include "reports/snapshot/memory_snapshot.h"

namespace plimsoll::reports {

struct SnapshotAllocation {
  Bytes requested;
  Bytes block;  // what torch.cuda.memory_allocated() counts for it
  // Indices of events; -1: before the history, the number of events: after it.
  std::int64_t born = -1, died = -1;  // died: given back by the program
  std::uint32_t stack = 0;
};

struct AllocationHistory {
  std::vector<SnapshotAllocation> allocations;  // in the order of their births
  std::vector<Bytes> allocated, reserved;  // after each event
  Bytes allocated_before, reserved_before;  // before the first
};

// Error{bad_input} naming the file: events that contradict each other or the segments at the end.
// Blocks are as CUDACachingAllocator.cpp makes them (`round_size`, `should_split`).
AllocationHistory history_of(const MemorySnapshot& snapshot);

}  // namespace plimsoll::reports
