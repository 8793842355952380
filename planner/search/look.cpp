#include "planner/search/look.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>

namespace plimsoll::planner::search {

namespace {
constexpr std::size_t kRound = 128;  // families; the same with any number of threads
}  // namespace

Approach approach_of(const Setting& x) {
  using models::RecomputeKind;
  const models::Strategy& s = x.strategy;
  const RecomputeKind kind = s.recompute.kind;
  const bool layers = kind != RecomputeKind::none && kind != RecomputeKind::selective;
  return {x.parts, s.stack, s.gpus, s.precision, s.data.zero, s.data.shard_group > 0, layers};
}

Look::Look(const Scope& scope, const Space& space, Workers& workers,
           std::vector<Evaluator>& evaluators, const std::atomic<bool>* stop,
           std::function<void(const Look&)> report)
    : scope_(scope),
      space_(space),
      workers_(workers),
      evaluators_(evaluators),
      stop_(stop),
      report_(std::move(report)) {}

void Look::add(const std::vector<Setting>& settings, const std::vector<Bytes>& states) {
  const std::size_t first = families_.size();
  families_.reserve(first + settings.size());
  std::vector<std::optional<Family>> made(settings.size());
  workers_.for_each(settings.size(), [&](std::size_t i, std::size_t) {
    made[i].emplace(scope_, space_, settings[i], static_cast<std::uint32_t>(first + i), states[i]);
  });
  for (std::optional<Family>& family : made) {
    const Approach approach = approach_of(family->setting());
    approaches_.push_back(numbers_.try_emplace(approach, numbers_.size()).first->second);
    families_.push_back(std::move(*family));
  }
  for (std::size_t i = first; i < families_.size(); ++i) push(i);
}

std::int64_t Look::evaluated() const {
  std::int64_t all = 0;
  for (const Family& family : families_) all += family.evaluated();
  return all;
}

std::int64_t Look::points() const {
  std::int64_t all = 0;
  for (const Family& family : families_) all += static_cast<std::int64_t>(family.all_points());
  return all;
}

void Look::push(std::size_t i) {
  const Family& family = families_[i];
  if (gpus_ > 0 && family.setting().strategy.gpus != gpus_) return;
  if (!family.exhausted() && !family.found()) open_.emplace(family.bound(), i);
}

void Look::rank_by(const Ties& ties, std::int64_t gpus) {
  ties_ = ties;
  gpus_ = gpus;
  open_ = {};
  beaten_.clear();
  for (std::size_t i = 0; i < families_.size(); ++i) {
    families_[i].rank_by(&ties_);
    push(i);
  }
}

std::vector<std::size_t> Look::places(std::size_t most) const {
  constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
  std::vector<std::size_t> best(numbers_.size(), none), out;
  for (std::size_t i = 0; i < families_.size(); ++i) {
    if (!families_[i].found()) continue;
    std::size_t& place = best[approaches_[i]];
    if (place == none || families_[i].found()->rank < families_[place].found()->rank) place = i;
  }
  std::ranges::copy_if(best, std::back_inserter(out), [](std::size_t i) { return i != none; });
  std::ranges::sort(out, [&](std::size_t a, std::size_t b) {
    return families_[a].found()->rank < families_[b].found()->rank;
  });
  if (out.size() > most) out.resize(most);
  return out;
}

std::vector<std::size_t> Look::verified_places(std::size_t most) const {
  std::vector<std::size_t> out = places(most);
  std::erase_if(out, [&](std::size_t i) {
    return !verified_.contains({i, families_[i].found_index()});
  });
  return out;
}

// Of each approach, as far as something was found.
std::vector<std::optional<Rank>> Look::best_ranks() const {
  std::vector<std::optional<Rank>> best(numbers_.size());
  if (scope_.exhaustive) return best;
  for (const std::size_t i : places(numbers_.size()))
    best[approaches_[i]] = families_[i].found()->rank;
  return best;
}

void Look::resolve_all(std::size_t top) {
  while (!open_.empty() && !stopped()) {
    const std::vector<std::size_t> listed = places(top);
    std::optional<Rank> threshold;
    if (listed.size() == top && !scope_.exhaustive)
      threshold = families_[listed.back()].found()->rank;
    std::vector<std::optional<Rank>> limits = best_ranks();
    std::vector<std::size_t> round;
    while (!open_.empty() && round.size() < kRound) {
      const auto [bound, i] = open_.top();
      if (threshold && !(bound < *threshold)) break;
      open_.pop();
      const std::optional<Rank>& best = limits[approaches_[i]];
      (best && !(bound < *best) ? beaten_ : round).push_back(i);
    }
    if (round.empty()) return;
    for (std::optional<Rank>& limit : limits)
      if (threshold && (!limit || *threshold < *limit)) limit = threshold;
    workers_.for_each(round.size(), [&](std::size_t k, std::size_t thread) {
      const std::optional<Rank>& limit = limits[approaches_[round[k]]];
      families_[round[k]].resolve(limit ? &*limit : nullptr, evaluators_[thread]);
    });
    for (const std::size_t i : round) push(i);
    report_(*this);
  }
}

// Whether `fit` would say that the list fits, gaps of the allocator included, and with the room
// that it is ranked by. What does not is taken back; false: the list must be looked for again.
bool Look::verify(std::size_t top) {
  std::vector<std::size_t> open;
  for (const std::size_t i : places(top))
    if (!verified_.contains({i, families_[i].found_index()})) open.push_back(i);
  std::vector<Fit> fits(open.size());
  std::vector<Replays> replays(open.size());
  workers_.for_each(open.size(), [&](std::size_t k, std::size_t) {
    fits[k] = search::fit(scope_, space_, families_[open[k]].found()->setting, replays[k]);
  });
  bool as_ranked = true;
  for (std::size_t k = 0; k < open.size(); ++k) {
    Family& family = families_[open[k]];
    bool stays = fits[k].fits;
    if (stays) {
      verified_[{open[k], family.found_index()}] = {std::move(replays[k]), fits[k].peak};
      stays = !family.learn_tightness(tightness(space_, fits[k].device));
    } else {
      family.reject();
    }
    if (stays) continue;
    as_ranked = false;
    push(open[k]);
  }
  if (as_ranked) return true;
  for (const std::size_t i : beaten_) push(i);
  beaten_.clear();
  return false;
}

void Look::find(std::size_t top, double least_speed) {
  const auto is_slow = [&](std::size_t i) {
    return families_[i].found()->throughput.tokens_per_second < least_speed;
  };
  do {
    resolve_all(top);
    if (std::ranges::all_of(places(1), is_slow)) return;
  } while (!verify(top));
}

}  // namespace plimsoll::planner::search
