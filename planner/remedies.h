// What would make a plan fit: changes of the question, alone and together, planned again.
#pragma once

#include <functional>
#include <vector>

#include "planner/plan.h"

namespace plimsoll::planner {

// How a changed question is planned.
struct Replanner {
  // Whether its tensors and overheads fit, leaving out the allocator's gaps: cheap.
  std::function<bool(const Question&)> could_fit;
  std::function<reports::Plan(const Question&)> plan;
};

// For a plan that does not fit, cheapest first (remedy_changes.h, Price): single changes with what
// each brings; and where none of them suffices, or a cheaper price would, the cheapest joined
// options that do: one for each price, of two or three changes, or of as few as can be left where
// three are not enough. Each figure is that of the changed question's own plan.
std::vector<reports::Remedy> find_remedies(const Question& question, const reports::Plan& plan,
                                           const Replanner& replanner);

}  // namespace plimsoll::planner
