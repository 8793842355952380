// The best plan of a space as the search must find it, from a look at every point, with no
// shortcut and none of the search's own order.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "planner/search/axes.h"
#include "planner/search/search.h"

namespace plimsoll::tests {

struct Point {
  planner::search::Setting setting;
  planner::search::Need need;
  double speed = 0;
};

class BruteForce {
 public:
  // `points`: those whose peak alone fits.
  BruteForce(const planner::search::Scope& scope, std::vector<Point> points)
      : scope_(scope), points_(std::move(points)) {}

  std::optional<Point> best() {
    std::map<int, std::vector<Point*>> levels;
    for (Point& p : points_) levels[p.setting.concession].push_back(&p);
    for (auto& [concession, level] : levels) {
      const Point* fastest =
          scope_.objective == Objective::throughput ? of_counts(level) : first(level, objective());
      if (fastest == nullptr) continue;
      if (scope_.objective == Objective::memory) return *fastest;
      std::erase_if(level, [&](const Point* p) {
        return p->setting.strategy.gpus != fastest->setting.strategy.gpus;
      });
      return *first(level, [&](const Point& p) { return tied(p, fastest->speed); });
    }
    return std::nullopt;
  }

  using Key = std::tuple<double, std::int64_t, bool, std::uint32_t, std::int64_t, double>;
  // Smaller is better.
  Key tied(const Point& p, double fastest) const {
    const double steps = std::log(fastest / p.speed) / -std::log1p(-planner::search::kTieMargin);
    const auto usable = *planner::capacity_of(scope_.base).usable;
    const double part = 100 * p.need.counted().real() / usable.real();
    return {std::get<0>(objective()(p)),
            static_cast<std::int64_t>(std::floor(steps)),
            std::ceil(part) > 97,
            planner::search::effort(p.setting),
            static_cast<std::int64_t>(std::ceil(part)),
            -p.speed};
  }

 private:
  using Objective = planner::search::Objective;

  std::function<std::tuple<double, double>(const Point&)> objective() const {
    return [this](const Point& p) {
      const auto gpus = static_cast<double>(p.setting.strategy.gpus);
      double key = 0;
      if (scope_.objective == Objective::gpus) key = gpus;
      if (scope_.objective == Objective::memory) key = p.need.least().real();
      if (scope_.objective == Objective::context)
        key = -static_cast<double>(p.setting.batch.seq_len);
      if (scope_.objective == Objective::batch && !scope_.global_batch)
        key = -static_cast<double>(p.setting.batch.micro_batch) * gpus;
      return std::tuple(key, -p.speed);
    };
  }

  bool fits(const Point& p) {
    const std::string name = planner::search::options_of(p.setting);
    const auto [entry, is_new] = fits_.try_emplace(name);
    if (is_new)
      entry->second = planner::search::fits(scope_, planner::search::plan_of(scope_, p.setting));
    return entry->second;
  }

  // The first in the order of `key` that fits.
  template <class Key>
  const Point* first(std::vector<Point*> points, Key key) {
    std::ranges::stable_sort(points,
                             [&](const Point* a, const Point* b) { return key(*a) < key(*b); });
    for (const Point* p : points)
      if (fits(*p)) return p;
    return nullptr;
  }

  // From the most GPUs down: fewer must be clearly faster, half as many only as fast.
  const Point* of_counts(const std::vector<Point*>& level) {
    std::map<std::int64_t, std::vector<Point*>, std::greater<>> counts;
    for (Point* p : level) counts[p->setting.strategy.gpus].push_back(p);
    const Point* best = nullptr;
    double most = 0;
    for (const auto& [gpus, points] : counts) {
      const Point* p = first(points, objective());
      if (p == nullptr) continue;
      const double margin = 1 - planner::search::kTieMargin;
      const bool by_half = best != nullptr && 2 * gpus <= best->setting.strategy.gpus;
      const bool better = best == nullptr ||
                          (by_half ? p->speed >= margin * most : p->speed > best->speed / margin);
      if (!better) continue;
      best = p;
      most = std::max(most, p->speed);
    }
    return best;
  }

  const planner::search::Scope& scope_;
  std::vector<Point> points_;
  std::map<std::string, bool> fits_;
};

}  // namespace plimsoll::tests
