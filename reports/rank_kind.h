// What ranks hold: by category, as states, and which of them hold the same.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "models/base/quantity.h"
#include "models/category.h"

namespace plimsoll::reports {

using ByCategory = std::array<Bytes, models::kCategories>;  // indexed by models::Category
Bytes sum(const ByCategory& parts);

struct States {
  Bytes parameters, gradients, optimizer;
  Bytes total() const { return parameters + gradients + optimizer; }
};

struct RankSpan {  // neighbouring ranks, both ends included
  std::int64_t first = 0, last = 0;
  bool operator==(const RankSpan&) const = default;
};

// One distinct kind of rank: ranks that hold the same. A plan's first kind has the highest peak.
struct RankKind {
  std::int64_t rank = 0, count = 1, pipeline_stage = 0;  // the first of them, and how many
  Bytes peak;
  ByCategory at_peak{};
  States states;
  Bytes reserved;
  std::vector<RankSpan> spans;  // ascending; none: `count` ranks from `rank` on
  bool has(std::int64_t which) const;
};

}  // namespace plimsoll::reports
