// The best settings of a space, found exactly.
//
// Every point has a rank that needs no memory figure (concession, then the objective, then speed,
// then its place in the order of the axes), so points are looked at from the best rank down and the
// search ends when the next rank is worse than the last place of the list. What is skipped is
// skipped by proof: within a family memory without scratch grows with the micro-batch
// (Need::monotone), so above a batch that does not fit none does. Rounds have a fixed size and see
// only what earlier rounds found, so that the answer and the count of evaluated points are the same
// on every run and with any number of threads.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "planner/search/evaluator.h"

namespace plimsoll::planner::search {

// Less is better.
struct Rank {
  int concession = 0;
  double first = 0, second = 0;  // by the objective
  std::uint32_t family = 0;  // simpler ones first
  auto operator<=>(const Rank&) const = default;
};

struct Found {
  Setting setting;
  Rank rank;
  Need need;
  Pace pace;
  reports::Plan plan;  // as `fit` plans it
};

struct ParetoPoint {
  Setting setting;
  Need need;
  Pace pace;
};

struct Progress {
  std::int64_t evaluated = 0;  // points with their full peak
  std::int64_t points = 0;  // of the whole space
  std::string best;  // "" so far
};

struct Control {
  const std::atomic<bool>* stop = nullptr;  // set: end with the best so far
  std::function<void(const Progress&)> progress;  // after each round, from the calling thread
};

struct Result {
  std::vector<Found> ranked;  // the best of each approach, best first; all fit
  std::vector<ParetoPoint> front;  // least memory first, at the winner's concession and GPUs
  std::int64_t evaluated = 0, points = 0;
  std::vector<std::string> refusals;  // why parts of the space could not be planned
  bool stopped = false;
};

// As `fit` plans the setting. `replays`: of this setting.
reports::Plan plan_of(const Scope& scope, const Setting& setting, Replays& replays);
reports::Plan plan_of(const Scope& scope, const Setting& setting);
bool fits(const Scope& scope, const Space& space, const Setting& setting, Replays& replays);
bool fits(const Scope& scope, const Space& space, const Setting& setting);
// Whether the plan does, with the overheads that the scope counts.
bool fits(const Scope& scope, const reports::Plan& plan);

// Error{bad_input} for filters that leave nothing, Error{unsupported} where nothing can be planned.
Result search(const Scope& scope, const Control& control = {});

}  // namespace plimsoll::planner::search
