// The best plan of a space, and where there is none the one that comes closest.
#pragma once

#include <optional>

#include "planner/search/search.h"

namespace plimsoll::planner::search {

// Nothing where nothing fits, or where the model or the stacks do not take what the scope asks.
std::optional<Found> best_of(const Scope& scope, const Control& control);

// What needs least memory, at the smallest batch, by its peak: not planned yet. Nothing where
// nothing can be.
std::optional<Found> least_needy(const Scope& scope);
// The same, planned.
std::optional<Found> closest(const Scope& scope);

// What must be usable on each GPU for a plan to fit as the scope wants it: no less than either its
// peak or the allocator's replay says.
Bytes counted_need(const Scope& scope, const Found& found);

}  // namespace plimsoll::planner::search
