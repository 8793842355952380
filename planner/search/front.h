// The settings that no other one beats in memory and in speed at once.
#pragma once

#include <vector>

#include "planner/search/evaluator.h"
#include "planner/search/search.h"
#include "planner/search/workers.h"

namespace plimsoll::planner::search {

struct Front {
  std::vector<ParetoPoint> points;  // least memory first; all fit, as `fit` says
  std::int64_t evaluated = 0;
};

// `families`: of one concession and number of GPUs.
Front pareto_front(const Scope& scope, const Space& space, const std::vector<Setting>& families,
                   std::vector<Evaluator>& evaluators, Workers& workers);

}  // namespace plimsoll::planner::search
