#include "planner/search/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "models/gpu_catalog.h"
#include "planner/memory/reserved.h"
#include "planner/search/axes.h"
#include "planner/search/concessions.h"
#include "planner/search/front.h"
#include "planner/search/look.h"
#include "planner/search/speed_limit.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner::search {

double Ties::counted(const Setting& setting, double tokens_per_second) {
  const models::Strategy& s = setting.strategy;
  if (s.data.zero > 0) tokens_per_second *= 1 - kTieMargin;
  if (stack_info(s.stack).wraps_another()) tokens_per_second *= 1 - kTieMargin;
  return tokens_per_second;
}

double Ties::counted_in_kind(const Setting& setting, double tokens_per_second) {
  const double speed = counted(setting, tokens_per_second);
  return effort(setting).code ? speed * (1 - kSameKindMargin) : speed;
}

namespace {
// While the fastest of a kind is looked for; it may be slower than another by as much.
constexpr double kHardlyEqual = 1e-3;

std::int64_t steps(double from, double to, double margin) {
  if (to <= 0) return std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(std::floor(std::log(from / to) / -std::log1p(-margin)));
}
}  // namespace

std::int64_t Ties::steps_below(double counted) const {
  return steps(fastest, counted, kTieMargin);
}

std::int64_t Ties::steps_in_kind(double counted_in_kind) const {
  return of_kind > 0 ? steps(of_kind, counted_in_kind, kSameKindMargin)
                     : steps(fastest, counted_in_kind, kHardlyEqual);
}

namespace {

class Search {
 public:
  Search(const Scope& scope, const Control& control, bool shares)
      : scope_(scope), control_(control), space_(scope), workers_(scope.threads) {
    check_filters(scope);
    for (std::size_t t = 0; t < workers_.threads(); ++t)
      evaluators_.emplace_back(scope_, space_, shares ? &known_ : nullptr);
  }

  // What was found stands on sections that are not equal after all.
  bool contradicted() const { return known_.sections.contradicted(); }

  // What asks for less of the user goes first.
  Result run() {
    for (const int concession : concession_sums())
      if (concession <= scope_.most_concession && !best_ && !stopped()) find_best(concession);
    if (best_) list();
    result_.stopped = stopped();
    if (!result_.ranked.empty() && !stopped()) add_front();
    forget(std::move(best_));
    result_.evaluated = finished_;
    return std::move(result_);
  }

 private:
  bool stopped() const { return control_.stop != nullptr && *control_.stop; }

  // The best plan of each number of GPUs that could matter; best_ is the look that has the best.
  void find_best(int concession) {
    if (scope_.objective == Objective::throughput) return find_fastest(concession);
    if (scope_.objective != Objective::gpus) return keep(look_at({.concession = concession}));
    const std::vector<GpuCount> counts = counts_asked_for();
    for (auto count = counts.rbegin(); count != counts.rend() && !best_ && !stopped(); ++count)
      keep(look_at({.concession = concession, .gpus = count->gpus}));
  }

  std::vector<GpuCount> counts_asked_for() const {
    std::vector<GpuCount> counts = gpu_counts(scope_);
    std::erase_if(counts, [&](const GpuCount& c) {
      return !allowed(scope_, "gpus", std::to_string(c.gpus));
    });
    return counts;
  }

  // From the most GPUs down. Fewer take the place of more where they are faster by more than the
  // estimate's error; half as many or fewer already where they are not slower by more.
  void find_fastest(int concession) {
    std::optional<SpeedLimit> limit;
    double most_speed = 0;  // of those that were the best
    std::int64_t first = 0;
    for (const GpuCount& count : counts_asked_for()) {
      if (stopped()) return;
      if (first == 0) first = count.gpus;
      const std::int64_t best = best_ ? gpus_of(*best_) : 0;
      const double faster = best_ ? speed_of(*best_) / (1 - kTieMargin) : 0;
      const bool by_half = best_ && 2 * count.gpus <= best;
      const double enough = by_half ? (1 - kTieMargin) * most_speed : faster;
      if (count.gpus != first && !scope_.exhaustive) {
        if (!limit) limit.emplace(scope_, space_, evaluators_[0], concession, first);
        const double most = limit->of(count.gpus, enough);
        if (most == 0 || most < enough) continue;
      }
      std::unique_ptr<Look> look =
          look_at({.concession = concession, .gpus = count.gpus}, scope_.exhaustive ? 0 : enough);
      const double speed = look->verified_places(1).empty() ? 0 : speed_of(*look);
      const bool better = best_ ? (by_half ? speed >= enough : speed > enough) : speed > 0;
      if (better) most_speed = std::max(most_speed, speed);
      if (better) std::swap(best_, look);
      forget(std::move(look));
    }
    if (limit) finished_ += limit->evaluated();
  }

  static const Found& best_of(const Look& look) {
    return *look.families()[look.verified_places(1).front()].found();
  }
  static double speed_of(const Look& look) { return best_of(look).throughput.tokens_per_second; }
  static std::int64_t gpus_of(const Look& look) { return best_of(look).setting.strategy.gpus; }

  void keep(std::unique_ptr<Look> look) {
    if (look->verified_places(1).empty())
      forget(std::move(look));
    else
      best_ = std::move(look);
  }

  void forget(std::unique_ptr<Look> look) {
    if (!look) return;
    finished_ += look->evaluated();
    for (const Family& family : look->families()) {
      const std::string& refusal = family.refusal();
      if (!refusal.empty() &&
          std::ranges::find(result_.refusals, refusal) == result_.refusals.end())
        result_.refusals.push_back(refusal);
    }
  }

  void report(const Look& look) {
    if (!control_.progress) return;
    const std::vector<std::size_t> here = look.places(1);
    const Found* found = here.empty() ? nullptr : look.families()[here[0]].found();
    if (best_ && best_.get() != &look && (found == nullptr || best_of(*best_).rank < found->rank))
      found = &best_of(*best_);
    const std::int64_t kept = best_ && best_.get() != &look ? best_->evaluated() : 0;
    control_.progress({finished_ + kept + look.evaluated(), result_.points,
                       found == nullptr ? "" : options_of(found->setting)});
  }

  // The best plan of a stage, by the objective alone; unverified where it is slower than that.
  std::unique_ptr<Look> look_at(const Stage& stage, double least_speed = 0) {
    std::vector<Setting> settings = families(scope_, stage);
    std::vector<Bytes> states(settings.size());
    if (!scope_.exhaustive && space_.usable()) states = leave_out_large_states(settings);
    auto look = std::make_unique<Look>(scope_, space_, workers_, evaluators_, control_.stop,
                                       [this](const Look& l) { report(l); });
    look->add(settings, states);
    result_.points += look->points();
    look->find(1, least_speed);
    return look;
  }

  // Parameters and optimizer states stay whatever is done about activations: where they alone are
  // too much, no family with this sharding fits. The states of those that are left.
  std::vector<Bytes> leave_out_large_states(std::vector<Setting>& settings) {
    std::map<std::tuple<Approach, std::int64_t, bool>, std::optional<Need>> known;
    std::vector<Bytes> states;
    std::erase_if(settings, [&](const Setting& s) {
      Approach sharding = approach_of(s);
      std::get<6>(sharding) = false;
      const auto [entry, is_new] = known.try_emplace(
          {sharding, s.strategy.data.shard_group, s.strategy.optimizer_impl.has_value()});
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

  // First for the fastest of the kind that wins, without regard to its knobs and its room; from it
  // on down what is as fast goes by these.
  void rank_by_ties(const Setting& fastest) {
    Ties ties{Ties::counted(fastest, result_.fastest)};
    best_->rank_by(ties, fastest.strategy.gpus);
    best_->find(1);
    const std::vector<std::size_t> first = best_->verified_places(1);
    if (stopped() || first.empty()) return;
    const Found& found = *best_->families()[first.front()].found();
    ties.of_kind = Ties::counted_in_kind(found.setting, found.throughput.tokens_per_second) /
                   (1 - kHardlyEqual);
    best_->rank_by(ties, fastest.strategy.gpus);
    best_->find(scope_.top);
  }

  // As `fit` plans them.
  void list() {
    const std::size_t best = best_->verified_places(1).front();
    const Found first = *best_->families()[best].found();
    const Points::mapped_type of_first =
        best_->verified().at({best, best_->families()[best].found_index()});
    result_.fastest = first.throughput.tokens_per_second;
    if (!stopped()) rank_by_ties(first.setting);
    const std::vector<std::size_t> places = best_->verified_places(scope_.top);
    result_.ranked.resize(std::max<std::size_t>(1, places.size()));
    if (places.empty()) result_.ranked[0] = first;  // interrupted
    workers_.for_each(result_.ranked.size(), [&](std::size_t k, std::size_t) {
      Replays replays = of_first.replays;
      if (!places.empty()) {
        const Family& family = best_->families()[places[k]];
        result_.ranked[k] = *family.found();
        replays = best_->verified().at({places[k], family.found_index()}).replays;
      }
      result_.ranked[k].plan = plan_of(scope_, result_.ranked[k].setting, replays);
    });
  }

  // Points of the front differ in speed, whatever the objective is: where families are of sizes,
  // others take their place.
  void add_front() {
    const Setting winner = result_.ranked.front().setting;
    const bool of_sizes = scope_.objective == Objective::context ||
                          (scope_.objective == Objective::batch && !scope_.global_batch);
    if (of_sizes) {
      by_speed_ = scope_;
      by_speed_.objective = Objective::throughput;
      forget(std::move(best_));
      std::vector<Setting> settings =
          families(scope_, {.concession = winner.concession, .gpus = winner.strategy.gpus});
      for (Setting& setting : settings) setting.batch.seq_len = winner.batch.seq_len;
      best_ = std::make_unique<Look>(by_speed_, space_, workers_, evaluators_, control_.stop,
                                     [](const Look&) {});
      best_->add(settings, std::vector<Bytes>(settings.size()));
    }
    std::vector<Family*> members;
    KnownPeaks known;
    for (std::size_t i = 0; i < best_->families().size(); ++i)
      if (best_->families()[i].setting().strategy.gpus == winner.strategy.gpus)
        members.push_back(&best_->families()[i]);
    for (const auto& [point, verified] : best_->verified())
      known[{&best_->families()[point.first], point.second}] = verified.peak;
    result_.front = pareto_front(scope_, space_, members, known, evaluators_, workers_);
  }

  const Scope& scope_;
  Scope by_speed_;  // the same, for the front's own families
  const Control& control_;
  Space space_;
  Workers workers_;
  KnownSteps known_;
  std::vector<Evaluator> evaluators_;  // one for each worker
  std::unique_ptr<Look> best_;
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

Fit fit(const Scope& scope, const Space& space, const Setting& setting, Replays& replays) {
  return planner::fit(question_of(scope, setting), space.parts(setting), scope.overheads, replays);
}

bool fits(const Scope& scope, const Space& space, const Setting& setting) {
  Replays replays;
  return fit(scope, space, setting, replays).fits;
}

bool fits(const Scope& scope, const reports::Plan& plan) {
  if (!plan.usable) return true;
  return plan.fits &&
         (scope.overheads == Overheads::typical || !plan.high_end || plan.high_end->fits);
}

Result search(const Scope& scope, const Control& control) {
  const Question& asked = scope.base;
  if (asked.cluster.gpu) models::check_products(*asked.cluster.gpu, asked.strategy.precision);
  if (!scope.exhaustive) {
    Search search(scope, control, true);
    Result result = search.run();
    if (!search.contradicted()) return result;
  }
  return Search(scope, control, false).run();
}

}  // namespace plimsoll::planner::search
