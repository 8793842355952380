#include "tests/search/brute_force.h"

#include <algorithm>
#include <cmath>

namespace plimsoll::tests {

using planner::search::kSameKindMargin;
using planner::search::kTieMargin;
using planner::search::Objective;

namespace {

// What is sharded, or needs another framework than PyTorch, must make good for the margin.
double counted_speed(const Point& p) {
  const models::Strategy& s = p.setting.strategy;
  double speed = p.speed;
  for (const bool asks : {s.data.zero > 0, s.stack == models::Stack::deepspeed})
    if (asks) speed *= 1 - kTieMargin;
  return speed;
}

// And what needs code for the smaller one.
double counted_in_kind(const Point& p) {
  return counted_speed(p) * (1 - (planner::search::effort(p.setting).code ? kSameKindMargin : 0));
}

std::int64_t steps(double from, double to, double margin) {
  return static_cast<std::int64_t>(std::floor(std::log(from / to) / -std::log1p(-margin)));
}

constexpr double kHardlyEqual = 1e-3;

}  // namespace

std::vector<Point> points_of(const planner::search::Scope& scope, const EveryBatch& every_batch) {
  const planner::search::Space space(scope);
  planner::search::Evaluator evaluator(scope, space);
  std::vector<Point> all;
  for (const planner::search::Setting& family : families(scope))
    for (const models::Batch& batch : every_batch(family)) {
      const auto need = evaluator.need(family, batch);
      if (!need || need->least() > *space.usable()) continue;
      planner::search::Setting x = family;
      x.batch = batch;
      all.push_back({x, *need, space.throughput(family, batch).tokens_per_second});
    }
  return all;
}

std::optional<Point> BruteForce::best() {
  std::map<int, std::vector<Point*>> levels;
  for (Point& p : points_) levels[p.setting.concession].push_back(&p);
  for (auto& [concession, level] : levels) {
    const Point* fastest =
        scope_.objective == Objective::throughput ? of_counts(level) : first(level, objective());
    if (fastest == nullptr) continue;
    fastest_ = *fastest;
    if (scope_.objective == Objective::memory) return *fastest;
    std::erase_if(level, [&](const Point* p) {
      return p->setting.strategy.gpus != fastest->setting.strategy.gpus;
    });
    level_ = level;
    of_kind_.reset();
    of_kind_ = first_tied(level);
    return first_tied(level);
  }
  return std::nullopt;
}

std::vector<Point> BruteForce::list(std::size_t most) {
  using models::RecomputeKind;
  std::map<std::tuple<int, models::Stack, models::Precision, int, bool, bool>, std::vector<Point*>>
      approaches;
  for (Point* p : level_) {
    const models::Strategy& s = p->setting.strategy;
    const RecomputeKind kind = s.recompute.kind;
    const bool layers =
        kind == RecomputeKind::full || kind == RecomputeKind::every || kind == RecomputeKind::sqrt;
    approaches[{p->setting.parts, s.stack, s.precision, s.data.zero, s.data.shard_group > 0,
                layers}]
        .push_back(p);
  }
  std::vector<Point> out;
  for (const auto& [approach, points] : approaches)
    if (const std::optional<Point> one = first_tied(points)) out.push_back(*one);
  std::ranges::sort(out, {}, [&](const Point& p) { return tied(p); });
  out.resize(std::min(out.size(), most));
  return out;
}

BruteForce::Key BruteForce::tied(const Point& p) const {
  const auto usable = *planner::capacity_of(scope_.base).usable;
  const double part = 100 * p.need.counted().real() / usable.real();
  const planner::search::Effort effort = planner::search::effort(p.setting);
  const double fastest = counted_speed(*fastest_), in_kind = counted_in_kind(p);
  return {std::get<0>(objective()(p)),
          steps(fastest, counted_speed(p), kTieMargin),
          std::max(p.tight, tightness(p.need.counted())),
          effort.kind,
          of_kind_
              ? steps(counted_in_kind(*of_kind_) / (1 - kHardlyEqual), in_kind, kSameKindMargin)
              : steps(fastest, in_kind, kHardlyEqual),
          effort.knobs,
          static_cast<std::int64_t>(std::ceil(part)),
          -p.speed};
}

std::int64_t BruteForce::tightness(const reports::Plan& plan) const {
  const bool high = scope_.overheads == planner::Overheads::high_end && plan.high_end;
  return tightness(high ? plan.high_end->device() : plan.device);
}

std::int64_t BruteForce::tightness(Bytes counted) const {
  const double part = 100 * counted.real() / planner::capacity_of(scope_.base).usable->real();
  return std::max<std::int64_t>(0, static_cast<std::int64_t>(std::ceil(part)) - 97);
}

std::function<std::tuple<double, double>(const Point&)> BruteForce::objective() const {
  return [this](const Point& p) {
    const auto gpus = static_cast<double>(p.setting.strategy.gpus);
    double key = 0;
    if (scope_.objective == Objective::gpus) key = gpus;
    if (scope_.objective == Objective::memory) key = p.need.least().real();
    if (scope_.objective == Objective::context) key = -static_cast<double>(p.setting.batch.seq_len);
    if (scope_.objective == Objective::batch && !scope_.global_batch)
      key = -static_cast<double>(p.setting.batch.micro_batch) * gpus;
    return std::tuple(key, -p.speed);
  };
}

bool BruteForce::fits(const Point& p) {
  const std::string name = planner::search::options_of(p.setting);
  const auto [entry, is_new] = fits_.try_emplace(name);
  if (is_new)
    entry->second = planner::search::fits(scope_, planner::search::plan_of(scope_, p.setting));
  return entry->second;
}

template <class Order>
Point* BruteForce::first(std::vector<Point*> points, Order key) {
  std::ranges::stable_sort(points,
                           [&](const Point* a, const Point* b) { return key(*a) < key(*b); });
  for (Point* p : points)
    if (fits(*p)) return p;
  return nullptr;
}

std::optional<Point> BruteForce::first_tied(const std::vector<Point*>& level) {
  while (true) {
    Point* p = first(level, [&](const Point& x) { return tied(x); });
    if (p == nullptr) return std::nullopt;
    const std::int64_t tight = tightness(planner::search::plan_of(scope_, p->setting));
    if (tight <= std::max(p->tight, tightness(p->need.counted()))) return *p;
    p->tight = tight;
  }
}

const Point* BruteForce::of_counts(const std::vector<Point*>& level) {
  std::map<std::int64_t, std::vector<Point*>, std::greater<>> counts;
  for (Point* p : level) counts[p->setting.strategy.gpus].push_back(p);
  const Point* best = nullptr;
  double most = 0;
  for (const auto& [gpus, points] : counts) {
    const Point* p = first(points, objective());
    if (p == nullptr) continue;
    const double margin = 1 - planner::search::kTieMargin;
    const bool by_half = best != nullptr && 2 * gpus <= best->setting.strategy.gpus;
    const bool better =
        best == nullptr || (by_half ? p->speed >= margin * most : p->speed > best->speed / margin);
    if (!better) continue;
    best = p;
    most = std::max(most, p->speed);
  }
  return best;
}

}  // namespace plimsoll::tests
