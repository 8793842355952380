// Nothing fits: what comes closest, and the smallest changes that would make something fit.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/search/search.h"

namespace plimsoll::planner::search {

struct WouldFit {
  std::string change;  // "--min-headroom 0", "--seq-len 2048", "--gpus 16", "--gpu h200"
  std::string gpu;  // the other card; "": the same
  Found plan;  // the best with that change
};

struct Shortage {
  std::optional<Found> closest;  // least memory; nothing where no part of the space can be planned
  Bytes missing;  // on each GPU
  std::vector<WouldFit> would_fit;
};

// `other_gpus`: cards to try in the place of this one.
Shortage shortage(const Scope& scope, const std::vector<models::Gpu>& other_gpus,
                  const Control& control = {});

}  // namespace plimsoll::planner::search
