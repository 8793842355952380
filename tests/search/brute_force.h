// The best plan of a space as the search must find it, from a look at every point, with no
// shortcut and none of the search's own order.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "planner/search/axes.h"
#include "planner/search/search.h"

namespace plimsoll::tests {

struct Point {
  planner::search::Setting setting;
  planner::search::Need need;
  double speed = 0;
  std::int64_t tight = 0;  // by what the allocator reserves: known once it is planned
};

// Each family's batches of `every_batch` whose peak alone fits.
using EveryBatch =
    std::function<std::vector<models::Batch>(const planner::search::Setting& family)>;
std::vector<Point> points_of(const planner::search::Scope& scope, const EveryBatch& every_batch);

class BruteForce {
 public:
  // `points`: those whose peak alone fits.
  BruteForce(const planner::search::Scope& scope, std::vector<Point> points)
      : scope_(scope), points_(std::move(points)) {}

  std::optional<Point> best();

  // After best(), of any objective but memory: the best of each approach (stack, stage of ZeRO,
  // groups or not, layers recomputed or not, precision, adapters) on the GPUs of the best, best
  // first.
  std::vector<Point> list(std::size_t most);
  // After best().
  using Key = std::tuple<double, std::int64_t, std::int64_t, std::uint32_t, std::int64_t,
                         std::uint32_t, std::int64_t, double>;
  Key tied(const Point& p) const;  // smaller is better
  double fastest() const { return fastest_->speed; }
  bool fits(const Point& p);  // as it is planned
  // Hundredths beyond 97 of the card, by what the scope counts.
  std::int64_t tightness(const reports::Plan& plan) const;

 private:
  std::int64_t tightness(Bytes counted) const;
  std::function<std::tuple<double, double>(const Point&)> objective() const;
  // The first in this order that fits.
  template <class Order>
  Point* first(std::vector<Point*> points, Order key);
  std::optional<Point> first_tied(const std::vector<Point*>& level);
  // From the most GPUs down: fewer must be clearly faster, half as many only as fast.
  const Point* of_counts(const std::vector<Point*>& level);

  const planner::search::Scope& scope_;
  std::vector<Point> points_;
  std::map<std::string, bool> fits_;
  std::optional<Point> fastest_, of_kind_;  // of_kind_: of the kind that wins
  std::vector<Point*> level_;  // of the best's concession and GPUs
};

}  // namespace plimsoll::tests
