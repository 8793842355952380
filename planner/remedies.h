// What would make a plan fit: single changes of strategy, planned again.
#pragma once

#include <functional>
#include <vector>

#include "planner/plan.h"

namespace plimsoll::planner {

struct Outcome {
  Bytes least;  // allocated peak and what stands outside the allocator
  Bytes device;  // with the allocator's gaps, where it could fit at all
  bool fits = false;
};

// Changes that apply to the question, cheapest first, each with its gain over `before`
// (allocated peak and overheads); changes
// that bring less than half a per cent are left out. When no single one fits, the last entry joins
// the least number of them, in the same order, that does. `replan` plans a changed question without
// details.
std::vector<reports::Remedy> find_remedies(const Question& question, Bytes before,
                                           const std::function<Outcome(const Question&)>& replan);

}  // namespace plimsoll::planner
