// What a recorded stack says.
#pragma once

#include <span>
#include <string_view>

#include "reports/snapshot/memory_snapshot.h"

namespace plimsoll::reports {

struct SnapshotFrame {
  std::string_view name, file;
  std::int64_t line = 0;
};

// `frames`: the innermost first, Python's and C++'s together.
SnapshotStack read_stack(std::span<const SnapshotFrame> frames);

}  // namespace plimsoll::reports
