// A plan held against a snapshot of torch's allocator that a user took of his own run.
//
// A snapshot names no tensors and no workload. One step of it is found by the sizes that the plan's
// step allocates; within it tensors are joined by size (after the allocator's rounding to 512
// bytes), by order, and where the numbers differ by when they are born and die and by the stack.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/prediction.h"
#include "reports/snapshot/allocation_history.h"

namespace plimsoll::reports {

// Of one side, those of one size and one name (its digits as '*') or place in the program.
struct SnapshotGroup {
  std::string name;
  std::string category;  // of the plan's
  Bytes size;  // of one
  std::size_t count = 0;
  bool at_peak = false;  // one of them lived at the peak
  bool stays = false;  // one of them lives beyond the step
  Bytes total() const { return size * static_cast<std::int64_t>(count); }
};

// How much of one side found a partner.
struct SnapshotShare {
  std::size_t found = 0, count = 0;
  Bytes found_bytes, bytes;
  double without_partner() const {
    return bytes == Bytes(0) ? 0 : 1 - found_bytes.real() / bytes.real();
  }
};

struct SnapshotComparison {
  std::string prediction, snapshot;  // files
  std::string fingerprint, model, stack;  // of the plan
  std::int64_t device = 0;
  bool agrees = false;
  std::size_t events = 0, first_event = 0, last_event = 0;  // of the history; of the step in it

  // As torch.cuda.max_memory_allocated() and max_memory_reserved() count, in that step.
  Bytes predicted_peak, measured_peak;
  std::optional<Bytes> predicted_reserved;
  Bytes measured_reserved;
  Bytes highest_allocated, highest_reserved;  // of the whole history
  Bytes left_behind;  // allocated after the step less before it

  SnapshotShare plan, measured;  // tensors of the plan; allocations that lived in the step …
  // … but for those without a partner that are scratch of one operator: it comes and goes within
  // two ops of the plan, whose high-water marks have it where its tensors do not.
  std::size_t scratch = 0;
  Bytes scratch_bytes;
  SnapshotShare at_peak;  // of `measured`, what lived at the measured peak
  std::vector<SnapshotGroup> only_planned, only_measured;  // the most bytes first
  std::vector<SnapshotGroup> outlived;  // found, and lives longer than planned: to the step's end
  std::vector<std::string> notes;
};

// `tolerance`: of the peak, and of what has no partner at it. Error{bad_input}: a plan without full
// detail, one that contradicts itself, a history that holds no step like the plan's.
SnapshotComparison compare(const Prediction& prediction, const MemorySnapshot& snapshot,
                           double tolerance);

}  // namespace plimsoll::reports
