// The best settings of a space, found exactly.
//
// First the fastest plan that fits (or the best by another objective) and its number of GPUs. Then,
// on that number, the list: what lies within kTieMargin of the fastest is equal to it, and goes by
// what it asks of the user and by the room it leaves; then what lies within the next step, and so
// on.
//
// Every point has a rank whose best possible value needs no memory figure, so points are looked at
// from the best rank down and the search ends when the next rank is worse than the last place of
// the list. What is skipped is skipped by proof: within a family memory without scratch grows with
// the micro-batch (Need::monotone), so above a batch that does not fit none does; and no number of
// GPUs is faster than each of them alone (SpeedLimit). Rounds have a fixed size and see only what
// earlier rounds found, so that the answer and the count of evaluated points are the same on every
// run and with any number of threads.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "planner/search/evaluator.h"

namespace plimsoll::planner::search {

// Less is better. Between `first` and `speed` stands what decides among plans that the estimate
// cannot tell apart (Ties); while the fastest is looked for, zeros.
struct Rank {
  int concession = 0;
  double first = 0;  // by the objective
  std::int64_t steps = 0;  // of kTieMargin below the fastest
  std::int64_t tight = 0;  // hundredths of the card that lack to room worth the name
  std::uint32_t kind = 0;  // what it takes of the user to set up (Effort)
  std::int64_t same_kind_steps = 0;  // of kSameKindMargin
  std::uint32_t knobs = 0;
  std::int64_t need = 0;  // hundredths of what is usable
  double speed = 0;  // negative
  std::uint32_t family = 0;  // simpler ones first
  auto operator<=>(const Rank&) const = default;
};

// What the plans of a list are measured against: tokens/s, as they count.
struct Ties {
  double fastest = 0;
  double of_kind = 0;  // the fastest of the kind that comes first; 0: it is looked for
  // Less by a margin for sharding and for another framework than PyTorch.
  static double counted(const Setting& setting, double tokens_per_second);
  // Less by one more for code.
  static double counted_in_kind(const Setting& setting, double tokens_per_second);
  // Negative: faster.
  std::int64_t steps_below(double counted) const;
  std::int64_t steps_in_kind(double counted_in_kind) const;
};

struct Found {
  Setting setting;
  Rank rank;
  Need need;
  Throughput throughput;
  double speed() const { return throughput.tokens_per_second; }
  reports::Plan plan;  // as `fit` plans it
};

struct ParetoPoint {
  Setting setting;
  Need need;
  Throughput throughput;
  Bytes peak;  // as `fit` plans it: blocks that the allocator hands out whole included
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
  // The best of each approach on the best number of GPUs, best first; all fit.
  std::vector<Found> ranked;
  std::vector<ParetoPoint> front;  // least memory first, at the winner's concession and GPUs
  double fastest = 0;  // tokens/s that the list is measured against
  std::int64_t evaluated = 0, points = 0;
  std::vector<std::string> refusals;  // why parts of the space could not be planned
  bool stopped = false;
};

// As `fit` plans the setting. `replays`: of this setting.
reports::Plan plan_of(const Scope& scope, const Setting& setting, Replays& replays);
reports::Plan plan_of(const Scope& scope, const Setting& setting);
Fit fit(const Scope& scope, const Space& space, const Setting& setting, Replays& replays);
bool fits(const Scope& scope, const Space& space, const Setting& setting);
// Whether the plan does, with the overheads that the scope counts.
bool fits(const Scope& scope, const reports::Plan& plan);

// Error{bad_input} for filters that leave nothing, Error{unsupported} where nothing can be planned.
Result search(const Scope& scope, const Control& control = {});

}  // namespace plimsoll::planner::search
