// Where in a history the step of a plan is.
#pragma once

#include <optional>
#include <span>

#include "reports/snapshot/allocation_history.h"

namespace plimsoll::reports {

// 512 bytes at least, and their multiples: what the allocator makes of a request.
std::int64_t size_class(Bytes bytes);

// Events after `begin` up to and with `end`; begin -1: from the first.
struct StepWindow {
  std::int64_t begin = -1, end = -1;
};

// `sizes`: the size classes of what the plan's step allocates, in their order. The last step that
// is whole; nothing where no part of the history is like it.
std::optional<StepWindow> step_window(const AllocationHistory& history,
                                      std::span<const std::int64_t> sizes);

}  // namespace plimsoll::reports
