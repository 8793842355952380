// Device memory outside the stack's allocator, and the workspaces that libraries take inside it.
#pragma once

#include <vector>

#include "models/cluster_spec.h"
#include "models/overheads.h"
#include "models/run_spec.h"
#include "planner/plan.h"
#include "reports/record.h"

namespace plimsoll::planner {

struct FrameworkOverhead {
  reports::FrameworkOverheadBytes typical, high;  // high: each at the high end of what was seen
  // Thousandths by which the allocator reserved more than was planned, at worst, where the stack is
  // held against its own allocator.
  std::int64_t reserved_more = 0;
  std::vector<reports::Assumption> assumptions;
  // Where it was measured (models/calibration.h) and the stack's reserved bytes are exact: the
  // least and the most that it may be, and why.
  std::optional<reports::Range> range;
  std::optional<models::Calibration> calibration;
  Bytes most() const { return range ? range->high : typical.total(); }
};

// Context with lazily loaded kernels; NCCL's buffers where the ranks of a group talk to each other
// (no communicator is made for one rank). Calibrated figures go before those of the catalog.
// Without a known GPU nothing is claimed.
FrameworkOverhead framework_overhead_of(const Question& question);

// Of those that NCCL makes for the strategy: its ranks', and one more where it shards in groups.
int communicators_of(const models::Strategy& strategy);

}  // namespace plimsoll::planner
