#include "planner/search/search.h"

#include <algorithm>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <tuple>

#include "models/run_names.h"
#include "planner/reserved.h"
#include "planner/search/axes.h"
#include "planner/search/family.h"
#include "planner/search/front.h"
#include "planner/search/workers.h"

namespace plimsoll::planner::search {

namespace {

constexpr int kMostConcession = 7;  // the sum of all
constexpr std::size_t kRound = 128;  // families; the same with any number of threads

// Settings that differ only in these are one approach: the list shows the best of each.
using Approach = std::tuple<int, models::Stack, std::int64_t, models::Precision, int, std::int64_t,
                            models::RecomputeKind>;

Approach approach_of(const Setting& x) {
  const models::Strategy& s = x.strategy;
  // every:K and sqrt are one idea.
  const auto kind = s.recompute.kind == models::RecomputeKind::every ? models::RecomputeKind::sqrt
                                                                     : s.recompute.kind;
  return {x.parts, s.stack, s.gpus, s.precision, s.data.zero, s.data.shard_group, kind};
}

class Search {
 public:
  Search(const Scope& scope, const Control& control, bool shares)
      : scope_(scope), control_(control), space_(scope), workers_(scope.threads) {
    check_filters(scope);
    for (std::size_t t = 0; t < workers_.threads(); ++t)
      evaluators_.emplace_back(scope_, space_, shares ? &known_ : nullptr);
  }

  // What was found stands on chapters that are not equal after all.
  bool contradicted() const { return known_.chapters.contradicted(); }

  // What asks for less of the user goes first, and where the fewest GPUs are wanted, fewer of them.
  Result run() {
    const std::vector<std::int64_t> counts = gpu_counts(scope_);
    for (int concession = 0; concession <= std::min(scope_.most_concession, kMostConcession);
         ++concession) {
      if (scope_.objective != Objective::gpus) {
        look_at({.concession = concession});
      } else {
        for (std::size_t i = counts.size(); i-- > 0 && !done();)
          look_at({.concession = concession, .gpus = counts[i]});
      }
      plan_list();
      if (!result_.ranked.empty() || stopped()) break;
      forget();
    }
    result_.stopped = stopped();
    if (!result_.ranked.empty() && !stopped()) add_front();
    forget();
    result_.evaluated = finished_;
    return std::move(result_);
  }

 private:
  bool stopped() const { return control_.stop != nullptr && *control_.stop; }
  bool done() const { return stopped() || places(scope_.top).size() == scope_.top; }

  void forget() {
    for (const Family& family : families_) {
      finished_ += family.evaluated();
      const std::string& refusal = family.refusal();
      if (!refusal.empty() &&
          std::ranges::find(result_.refusals, refusal) == result_.refusals.end())
        result_.refusals.push_back(refusal);
    }
    families_.clear();
    verified_.clear();
    open_ = {};
  }

  void report() {
    if (!control_.progress) return;
    std::int64_t evaluated = finished_;
    for (const Family& family : families_) evaluated += family.evaluated();
    const std::vector<std::size_t> best = places(1);
    control_.progress({evaluated, result_.points,
                       best.empty() ? "" : options_of(families_[best[0]].found()->setting)});
  }

  // Adds the families of a stage, and looks until the list stands.
  void look_at(const Stage& stage) {
    std::vector<Setting> settings = families(scope_, stage);
    std::vector<Bytes> states(settings.size());
    if (!scope_.exhaustive && space_.usable()) states = leave_out_large_states(settings);
    const std::size_t first = families_.size();
    make_families(scope_, settings, states);
    for (std::size_t i = first; i < families_.size(); ++i) {
      result_.points += static_cast<std::int64_t>(families_[i].all_points());
      push(i);
    }
    do {
      resolve_all();
    } while (!verify() && !stopped());
  }

  void make_families(const Scope& scope, const std::vector<Setting>& settings,
                     const std::vector<Bytes>& states) {
    const std::size_t first = families_.size();
    families_.reserve(first + settings.size());
    std::vector<std::optional<Family>> made(settings.size());
    workers_.for_each(settings.size(), [&](std::size_t i, std::size_t) {
      made[i].emplace(scope, space_, settings[i], static_cast<std::uint32_t>(first + i), states[i]);
    });
    for (std::optional<Family>& family : made) families_.push_back(std::move(*family));
  }

  // Parameters and optimizer states stay whatever is done about activations: where they alone are
  // too much, no family with this sharding fits. The states of those that are left.
  std::vector<Bytes> leave_out_large_states(std::vector<Setting>& settings) {
    std::map<std::tuple<Approach, bool>, std::optional<Need>> known;
    std::vector<Bytes> states;
    std::erase_if(settings, [&](const Setting& s) {
      Approach approach = approach_of(s);
      std::get<models::RecomputeKind>(approach) = models::RecomputeKind::none;
      const auto [entry, is_new] =
          known.try_emplace({approach, s.strategy.optimizer_impl.has_value()});
      std::optional<Need>& need = entry->second;
      if (is_new) {
        models::Batch smallest = s.batch;
        smallest.micro_batch = 1;
        need = evaluators_[0].need(s, smallest);
        ++finished_;
      }
      const bool large = need && need->counted(need->states) > *space_.usable();
      if (large) result_.points += static_cast<std::int64_t>(space_.batches(s).size());
      if (!large) states.push_back(need ? need->states : Bytes(0));
      return large;
    });
    return states;
  }

  void push(std::size_t i) {
    if (!families_[i].exhausted() && !families_[i].found()) open_.emplace(families_[i].bound(), i);
  }

  // The best found family of each approach, best first.
  std::vector<std::size_t> places(std::size_t most) const {
    std::map<Approach, std::size_t> best;
    for (std::size_t i = 0; i < families_.size(); ++i) {
      if (!families_[i].found()) continue;
      const auto [entry, is_new] = best.try_emplace(approach_of(families_[i].setting()), i);
      if (!is_new && families_[i].found()->rank < families_[entry->second].found()->rank)
        entry->second = i;
    }
    std::vector<std::size_t> out;
    for (const auto& [approach, i] : best) out.push_back(i);
    std::ranges::sort(out, [&](std::size_t a, std::size_t b) {
      return families_[a].found()->rank < families_[b].found()->rank;
    });
    if (out.size() > most) out.resize(most);
    return out;
  }

  // Until no family can change the list.
  void resolve_all() {
    while (!open_.empty() && !stopped()) {
      const std::vector<std::size_t> listed = places(scope_.top);
      std::optional<Rank> threshold;
      if (listed.size() == scope_.top && !scope_.exhaustive)
        threshold = families_[listed.back()].found()->rank;
      std::vector<std::size_t> round;
      while (!open_.empty() && round.size() < kRound) {
        const auto [bound, i] = open_.top();
        if (threshold && !(bound < *threshold)) break;
        open_.pop();
        round.push_back(i);
      }
      if (round.empty()) return;
      const Rank* limit = threshold ? &*threshold : nullptr;
      workers_.for_each(round.size(), [&](std::size_t k, std::size_t thread) {
        families_[round[k]].resolve(limit, evaluators_[thread]);
      });
      for (const std::size_t i : round) push(i);
      report();
    }
  }

  // Whether `fit` would say that the list fits, gaps of the allocator included. What does not is
  // taken back; false: the list must be looked for again.
  bool verify() {
    std::vector<std::size_t> open;
    for (const std::size_t i : places(scope_.top))
      if (!verified_.contains(i)) open.push_back(i);
    std::vector<char> fit(open.size());
    std::vector<Replays> replays(open.size());
    workers_.for_each(open.size(), [&](std::size_t k, std::size_t) {
      const Setting& setting = families_[open[k]].found()->setting;
      fit[k] = search::fits(scope_, space_, setting, replays[k]) ? 1 : 0;
    });
    for (std::size_t k = 0; k < open.size(); ++k) {
      if (fit[k] != 0) {
        verified_[open[k]] = std::move(replays[k]);
        continue;
      }
      families_[open[k]].reject();
      push(open[k]);
    }
    return std::ranges::find(fit, 0) == fit.end();
  }

  // As `fit` plans them.
  void plan_list() {
    std::vector<std::size_t> list;
    for (const std::size_t i : places(scope_.top))
      if (verified_.contains(i)) list.push_back(i);
    result_.ranked.resize(list.size());
    workers_.for_each(list.size(), [&](std::size_t k, std::size_t) {
      result_.ranked[k] = *families_[list[k]].found();
      result_.ranked[k].plan = plan_of(scope_, result_.ranked[k].setting, verified_.at(list[k]));
    });
  }

  // Points of the front differ in speed, whatever the objective is: where families are of sizes,
  // others take their place.
  void add_front() {
    const Found& winner = result_.ranked.front();
    const bool of_sizes = scope_.objective == Objective::context ||
                          (scope_.objective == Objective::batch && !scope_.global_batch);
    if (of_sizes) {
      by_speed_ = scope_;
      by_speed_.objective = Objective::throughput;
      forget();
      std::vector<Setting> settings = families(
          scope_, {.concession = winner.setting.concession, .gpus = winner.setting.strategy.gpus});
      for (Setting& setting : settings) setting.batch.seq_len = winner.setting.batch.seq_len;
      make_families(by_speed_, settings, std::vector<Bytes>(settings.size()));
    }
    std::vector<Family*> members;
    std::set<const Family*> verified;
    for (std::size_t i = 0; i < families_.size(); ++i) {
      const Setting& setting = families_[i].setting();
      if (setting.concession != winner.setting.concession ||
          setting.strategy.gpus != winner.setting.strategy.gpus)
        continue;
      members.push_back(&families_[i]);
      if (verified_.contains(i)) verified.insert(&families_[i]);
    }
    result_.front = pareto_front(scope_, space_, members, verified, evaluators_, workers_);
  }

  const Scope& scope_;
  Scope by_speed_;  // the same, for the front's own families
  const Control& control_;
  Space space_;
  Workers workers_;
  KnownSteps known_;
  std::vector<Evaluator> evaluators_;  // one for each worker
  std::vector<Family> families_;
  using Open = std::pair<Rank, std::size_t>;
  struct Later {
    bool operator()(const Open& a, const Open& b) const { return b.first < a.first; }
  };
  std::priority_queue<Open, std::vector<Open>, Later> open_;
  // Whose found points fit, allocator and all.
  std::map<std::size_t, Replays> verified_;
  std::int64_t finished_ = 0;
  Result result_;
};

}  // namespace

namespace {
Question question_of(const Scope& scope, const Setting& setting) {
  Question question = scope.base;
  question.strategy = setting.strategy;
  question.batch = setting.batch;
  question.detail = Detail::abridged;  // what `fit` takes without --detail
  question.remedies = false;
  return question;
}
}  // namespace

reports::Plan plan_of(const Scope& scope, const Setting& setting, Replays& replays) {
  return plan(question_of(scope, setting), replays);
}

reports::Plan plan_of(const Scope& scope, const Setting& setting) {
  Replays replays;
  return plan_of(scope, setting, replays);
}

bool fits(const Scope& scope, const Space& space, const Setting& setting, Replays& replays) {
  return planner::fits(question_of(scope, setting), space.parts(setting), scope.overheads, replays);
}

bool fits(const Scope& scope, const Space& space, const Setting& setting) {
  Replays replays;
  return fits(scope, space, setting, replays);
}

bool fits(const Scope& scope, const reports::Plan& plan) {
  if (!plan.usable) return true;
  return plan.fits &&
         (scope.overheads == Overheads::typical || !plan.high_end || plan.high_end->fits);
}

Result search(const Scope& scope, const Control& control) {
  if (!scope.exhaustive) {
    Search search(scope, control, true);
    Result result = search.run();
    if (!search.contradicted()) return result;
  }
  return Search(scope, control, false).run();
}

}  // namespace plimsoll::planner::search
