// Ranks that hold the same, so that one of them is planned for all.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "reports/record.h"

namespace plimsoll::planner {

struct EqualRanks {
  std::vector<reports::RankSpan> spans;  // ascending
  std::int64_t first() const { return spans.front().first; }
  std::int64_t count() const;
  bool has(std::int64_t rank) const;
};

// All ranks of a world, by what one of them holds: ranks with equal answers are alike. Sharding
// groups of `group` ranks one after another are; so `held` is asked about the first group only.
std::vector<EqualRanks> equal_ranks(
    std::int64_t world, std::int64_t group,
    const std::function<std::vector<std::int64_t>(std::int64_t rank)>& held);

}  // namespace plimsoll::planner
