// The settings that no other one beats in memory and in speed at once.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "planner/search/evaluator.h"
#include "planner/search/family.h"
#include "planner/search/search.h"
#include "planner/search/workers.h"

namespace plimsoll::planner::search {

// Of families of one concession and number of GPUs: least memory first; all fit, as `fit` says.
// What these families know of their points already is used, and what is evaluated is theirs.
// `known`: points that are known to fit so, with their peaks.
using KnownPeaks = std::map<std::pair<const Family*, std::size_t>, Bytes>;
std::vector<ParetoPoint> pareto_front(const Scope& scope, const Space& space,
                                      const std::vector<Family*>& families, const KnownPeaks& known,
                                      std::vector<Evaluator>& evaluators, Workers& workers);

}  // namespace plimsoll::planner::search
