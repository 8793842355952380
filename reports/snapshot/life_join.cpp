#include "reports/snapshot/life_join.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace plimsoll::reports {

namespace {
using Indices = std::vector<std::size_t>;
using Phase = SnapshotStack::Phase;

// Shares of a step by which two lives may lie apart: ops are no seconds and no events, and an op
// that the plan counts as one is many events of the allocator.
constexpr double kMostApart = 0.2;
constexpr double kStaysOrNot = 0.1;  // one outlives the step, the other does not
constexpr double kScratch = 2;  // ops
constexpr double kOtherPhase = 0.1, kOwnLine = 0.005;
// How far from their places in the order two of one size are looked for.
constexpr std::size_t kBand = 128;
constexpr std::size_t kMostCells = std::size_t{1} << 24;  // of an alignment's table

// From events to ops: straight lines between pairs that are sure.
class Clock {
 public:
  explicit Clock(std::vector<std::pair<std::int64_t, std::int64_t>> sure) {
    std::ranges::sort(sure);
    points_ = longest_rising(sure);
  }

  double op_of(std::int64_t event, std::int64_t ops) const {
    if (points_.empty()) return 0;
    const auto after =
        std::ranges::lower_bound(points_, event, {}, &std::pair<std::int64_t, std::int64_t>::first);
    if (after == points_.begin()) return static_cast<double>(points_.front().second);
    if (after == points_.end()) return static_cast<double>(std::min(points_.back().second, ops));
    const auto [e0, o0] = *std::prev(after);
    const auto [e1, o1] = *after;
    const double share = static_cast<double>(event - e0) / static_cast<double>(e1 - e0);
    return static_cast<double>(o0) + share * static_cast<double>(o1 - o0);
  }

 private:
  using Points = std::vector<std::pair<std::int64_t, std::int64_t>>;

  // What is out of order among them belongs to a wrong pair. Equal events: the last of them.
  static Points longest_rising(const Points& all) {
    std::vector<std::size_t> tails, before(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto at = std::ranges::upper_bound(tails, all[i].second, {},
                                               [&](std::size_t t) { return all[t].second; });
      before[i] = at == tails.begin() ? i : *std::prev(at);
      if (at == tails.end())
        tails.push_back(i);
      else
        *at = i;
    }
    Points out;
    for (std::size_t i = tails.empty() ? 0 : tails.back(); !tails.empty();) {
      if (out.empty() || out.back().first != all[i].first) out.push_back(all[i]);
      if (before[i] == i) break;
      i = before[i];
    }
    std::ranges::reverse(out);
    return out;
  }

  Points points_;
};

class LifeJoin {
 public:
  LifeJoin(std::span<const Life> planned, std::span<const Life> measured, std::int64_t ops,
           std::int64_t begin, std::int64_t end)
      : planned_(planned),
        measured_(measured),
        ops_(std::max<std::int64_t>(1, ops)),
        begin_(begin),
        end_(end) {
    for (std::size_t i = 0; i < planned.size(); ++i) sizes_[planned[i].size].first.push_back(i);
    for (std::size_t i = 0; i < measured.size(); ++i) sizes_[measured[i].size].second.push_back(i);
  }

  JoinedLives run() {
    clock_ = Clock(sure());
    for (const auto& [size, lives] : sizes_)
      if (!in_order(lives.first, lives.second)) align(lives.first, lives.second);
    std::vector<bool> planned(planned_.size()), measured(measured_.size());
    for (const auto& [p, m] : out_.pairs) planned[p] = measured[m] = true;
    Indices alone;
    for (std::size_t i = 0; i < measured_.size(); ++i)
      if (!measured[i]) (is_scratch(measured_[i]) ? out_.scratch : alone).push_back(i);
    const auto left = static_cast<std::size_t>(std::ranges::count(planned, false));
    if (left == 0 || alone.size() > kMostCells / left) return std::move(out_);
    for (std::size_t i = 0; i < planned_.size(); ++i)
      if (!planned[i]) gather_parts(i, alone);
    return std::move(out_);
  }

 private:
  // Births and deaths of sizes of which there are as many here as there.
  std::vector<std::pair<std::int64_t, std::int64_t>> sure() const {
    std::vector<std::pair<std::int64_t, std::int64_t>> out{{begin_, -1}, {end_, ops_}};
    for (const auto& [size, lives] : sizes_) {
      if (lives.first.size() != lives.second.size()) continue;
      for (std::size_t i = 0; i < lives.first.size(); ++i) {
        const Life &p = planned_[lives.first[i]], &m = measured_[lives.second[i]];
        out.emplace_back(m.born, p.born);
        if (!p.stays && !m.stays) out.emplace_back(m.died, p.died);
      }
    }
    return out;
  }

  double apart(std::int64_t event, std::int64_t op) const {
    return std::abs(clock_.op_of(event, ops_) - static_cast<double>(op)) /
           static_cast<double>(ops_);
  }

  double distance(std::size_t planned, std::size_t measured) const {
    const Life &p = planned_[planned], &m = measured_[measured];
    double out = apart(m.born, p.born) + (m.own ? kOwnLine : 0);
    out += p.stays != m.stays ? kStaysOrNot : p.stays ? 0 : apart(m.died, p.died) / 2;
    if (p.phase != Phase::unknown && m.phase != Phase::unknown && p.phase != m.phase)
      out += kOtherPhase;
    return out;
  }

  bool in_order(const Indices& planned, const Indices& measured) {
    if (planned.size() != measured.size()) return false;
    for (std::size_t i = 0; i < planned.size(); ++i)
      if (distance(planned[i], measured[i]) > kMostApart) return false;
    for (std::size_t i = 0; i < planned.size(); ++i)
      out_.pairs.emplace_back(planned[i], measured[i]);
    return true;
  }

  bool is_scratch(const Life& life) const {
    return !life.stays && clock_.op_of(life.died, ops_) - clock_.op_of(life.born, ops_) <= kScratch;
  }

  // Such as the parameters of a unit that FSDP2 gathers: one after another, and together as large.
  // `alone` loses what is taken.
  void gather_parts(std::size_t planned, Indices& alone) {
    const std::int64_t size = planned_[planned].size;
    std::int64_t sum = 0;
    std::size_t first = 0;
    for (std::size_t last = 0; last < alone.size(); ++last) {
      sum += measured_[alone[last]].size;
      while (sum > size) sum -= measured_[alone[first++]].size;
      if (sum != size || first > last || distance(planned, alone[first]) > kMostApart) continue;
      const auto begin = alone.begin() + static_cast<std::ptrdiff_t>(first),
                 end = alone.begin() + static_cast<std::ptrdiff_t>(last) + 1;
      out_.parts.emplace_back(planned, Indices(begin, end));
      alone.erase(begin, end);
      return;
    }
  }

  // The alignment of two sequences with the least sum of distances, where one that stays alone
  // costs half of the most that a pair may.
  void align(const Indices& planned, const Indices& measured) {
    const std::size_t n = planned.size(), m = measured.size();
    if (n == 0 || m == 0) return;
    const std::size_t more = n > m ? n - m : m - n;
    const std::size_t reach = kBand + more, width = 2 * reach + 1;
    if (n > kMostCells / width) return walk(planned, measured);
    constexpr double kNever = std::numeric_limits<double>::infinity();
    const auto inside = [&](std::size_t i, std::size_t j) {
      return j + reach >= i && j <= i + reach;
    };
    const auto column = [&](std::size_t i, std::size_t j) { return j + reach - i; };
    enum : char { pair, only_planned, only_measured };
    std::vector<double> last(width, kNever), row(width, kNever);
    std::vector<char> moves((n + 1) * width, only_measured);
    for (std::size_t i = 0; i <= n; ++i) {
      std::ranges::fill(row, kNever);
      for (std::size_t j = i > reach ? i - reach : 0; j <= std::min(m, i + reach); ++j) {
        double best = i == 0 && j == 0 ? 0 : kNever;
        char move = only_measured;
        const auto take = [&](double cost, char by) {
          if (cost < best) {
            best = cost;
            move = by;
          }
        };
        if (i > 0 && inside(i - 1, j)) take(last[column(i - 1, j)] + kMostApart / 2, only_planned);
        if (j > 0 && inside(i, j - 1)) take(row[column(i, j - 1)] + kMostApart / 2, only_measured);
        if (i > 0 && j > 0)
          take(last[column(i - 1, j - 1)] + distance(planned[i - 1], measured[j - 1]), pair);
        row[column(i, j)] = best;
        moves[i * width + column(i, j)] = move;
      }
      std::swap(last, row);
    }
    for (std::size_t i = n, j = m; i > 0 && j > 0;) {
      const char move = moves[i * width + column(i, j)];
      if (move == pair) out_.pairs.emplace_back(planned[i - 1], measured[j - 1]);
      if (move != only_measured) --i;
      if (move != only_planned) --j;
    }
  }

  // Where there are too many for that: each with the next that is near enough.
  void walk(const Indices& planned, const Indices& measured) {
    for (std::size_t i = 0, j = 0; i < planned.size() && j < measured.size();) {
      if (distance(planned[i], measured[j]) <= kMostApart) {
        out_.pairs.emplace_back(planned[i++], measured[j++]);
        continue;
      }
      const double op = clock_.op_of(measured_[measured[j]].born, ops_);
      (op < static_cast<double>(planned_[planned[i]].born) ? j : i)++;
    }
  }

  std::span<const Life> planned_, measured_;
  std::int64_t ops_, begin_, end_;
  std::map<std::int64_t, std::pair<Indices, Indices>> sizes_;
  Clock clock_{{}};
  JoinedLives out_;
};
}  // namespace

JoinedLives join_lives(std::span<const Life> planned, std::span<const Life> measured,
                       std::int64_t ops, std::int64_t begin, std::int64_t end) {
  return LifeJoin(planned, measured, ops, begin, end).run();
}

}  // namespace plimsoll::reports
