// What torch.cuda.memory._dump_snapshot() wrote of one device (torch/cuda/memory.py, `_snapshot`):
// the allocator's segments when it was taken, and its history until then.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/base/quantity.h"

namespace plimsoll::reports {

// Where the program stood. Of many frames only what people and the join look at.
struct SnapshotStack {
  enum class Phase { unknown, forward, backward, optimizer };
  // "train.py:42 step, clone": the innermost line of the user's own Python, else of any, and the
  // operator; "": not recorded.
  std::string where;
  bool own = false;  // the innermost Python line is the user's, no library's
  Phase phase = Phase::unknown;
};

struct SnapshotEvent {
  // segment_*: also expandable segments' map and unmap. Others (oom, snapshot) are left out.
  enum class Action : std::uint8_t {
    alloc,
    free_requested,
    free_completed,
    segment_alloc,
    segment_free
  };
  Action action = Action::alloc;
  std::int64_t address = 0;
  Bytes size;  // as requested, of segments as they are
  std::uint32_t stack = 0;  // of `stacks`
};

struct SnapshotBlock {
  std::int64_t address = 0;
  Bytes size, requested;
  bool allocated = false;  // not yet given back by the program
  bool active = false;  // or given back, and still in use on a stream
  std::uint32_t stack = 0;
};

struct SnapshotSegment {
  std::int64_t address = 0;
  Bytes size;
  bool small = false, expandable = false;
  std::vector<SnapshotBlock> blocks;  // in the order of their addresses; they fill the segment
};

struct MemorySnapshot {
  std::string source;
  std::int64_t device = 0;
  std::size_t devices = 1;  // that hold memory or have a history
  std::vector<SnapshotSegment> segments;
  std::vector<SnapshotEvent> events;
  std::vector<SnapshotStack> stacks;  // the first: not recorded
};

// Of the device with the most memory. Error{bad_input} naming `source`: no such pickle
// (pickle_reader.h), no snapshot, no history in it, or figures that cannot be.
MemorySnapshot read_snapshot(std::string_view content, const std::string& source);

}  // namespace plimsoll::reports
