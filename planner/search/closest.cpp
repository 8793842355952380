#include "planner/search/closest.h"

#include <algorithm>

#include "planner/search/axes.h"
#include "planner/search/family.h"

namespace plimsoll::planner::search {

std::optional<Found> best_of(const Scope& scope, const Control& control) {
  Scope one = scope;
  one.top = 1;
  try {
    Result result = search(one, {.stop = control.stop});
    if (result.ranked.empty() || result.stopped) return std::nullopt;
    return std::move(result.ranked.front());
  } catch (const Error&) {
    return std::nullopt;  // a change that the model or the stack does not take
  }
}

namespace {

// The family whose smallest batch needs least. How fast it would be nobody asks.
std::optional<Found> least_needy(const Scope& open, const Space& space, KnownSteps* known) {
  const std::vector<Setting> settings = families(open);
  Evaluator evaluator(open, space, known);
  std::optional<Found> best;
  for (std::uint32_t i = 0; i < settings.size(); ++i) {
    Family family(open, space, settings[i], i);
    if (family.points() == 0) continue;
    const Need* need = family.need(0, evaluator);
    if (need == nullptr) continue;
    const Rank rank{
        .concession = settings[i].concession, .first = need->counted().real(), .family = i};
    if (best && best->need.counted() <= need->counted()) continue;
    best = Found{.setting = family.point(0), .rank = rank, .need = *need};
  }
  return best;
}

}  // namespace

std::optional<Found> least_needy(const Scope& scope) {
  Scope open = scope;
  open.objective = Objective::memory;
  const Space space(open);
  KnownSteps known;
  std::optional<Found> best = least_needy(open, space, &known);
  if (known.sections.contradicted()) best = least_needy(open, space, nullptr);
  return best;
}

std::optional<Found> closest(const Scope& scope) {
  std::optional<Found> best = least_needy(scope);
  if (best) best->plan = plan_of(scope, best->setting);
  return best;
}

Bytes counted_need(const Scope& scope, const Found& found) {
  const bool high = scope.overheads == Overheads::high_end && found.plan.high_end;
  return std::max(found.need.counted(), high ? found.plan.high_end->device() : found.plan.device);
}

}  // namespace plimsoll::planner::search
