// The allocation history of a traced step (tools/oracle/torch_measure.py --trace), level by level.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

namespace plimsoll::tests {

struct History {
  std::vector<std::int64_t> level;  // after each event of the last step
  std::vector<int> phase;  // of each event: 0 forward, 1 backward, 2 optimizer
  std::int64_t resident = 0;
};

// Requested bytes after each event of the trace's last step.
History history_of(const nlohmann::json& trace);

}  // namespace plimsoll::tests
