#include "tools/fleet/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "models/base/error.h"
#include "tools/fleet/solver.h"

namespace plimsoll::tools {

using reports::Fleet;
using reports::FleetOption;
using reports::FleetPool;
using reports::FleetSolution;

namespace {
constexpr std::size_t kMostPatterns = 20'000;
// More nodes than anybody buys; a pool without an upper end needs one for the solver.
constexpr double kMostNodes = 1e6;
constexpr double kNoLimit = -std::numeric_limits<double>::max();  // as COIN-OR writes it

void extend(std::int64_t gpus, const std::vector<std::int64_t>& sizes, std::size_t at,
            std::size_t most, std::vector<std::int64_t>& pattern,
            std::vector<std::vector<std::int64_t>>& out) {
  if (out.size() > most) return;
  std::int64_t n = gpus / sizes[at];
  // As many of the last as there is room for: then not even the smallest goes into what is left.
  if (at + 1 == sizes.size()) {
    pattern[at] = n;
    out.push_back(pattern);
    return;
  }
  for (; n >= 0; --n) {
    pattern[at] = n;
    extend(gpus - n * sizes[at], sizes, at + 1, most, pattern, out);
  }
}

// The columns of one fleet's program.
class Placement {
 public:
  Placement(const Fleet& fleet, bool may_buy) : fleet_(fleet) {
    for (std::size_t j = 0; j < fleet.jobs.size(); ++j) add_job(j);
    for (std::size_t p = 0; p < fleet.pools.size(); ++p) add_pool(p, may_buy);
  }

  FleetSolution solved(double seconds) {
    FleetSolution out;
    out.optimal = true;
    out.bought_nodes.resize(fleet_.pools.size());
    if (chosen_.empty()) return out;  // nothing fits anywhere
    std::vector<double> priority(program_.columns.size()), price(priority.size()),
        gpus(priority.size());
    for (const auto& [job, option, column] : chosen_) {
      priority[column] = -fleet_.jobs[job].priority;
      gpus[column] = static_cast<double>(fleet_.jobs[job].options[option].gpus);
    }
    for (std::size_t p = 0; p < bought_.size(); ++p) {
      if (!bought_[p]) continue;
      const auto node = static_cast<double>(fleet_.pools[p].gpus_per_node);
      price[*bought_[p]] = fleet_.pools[p].price.value_or(0) * node;
      gpus[*bought_[p]] = node;
    }
    const IntegerSolution most = best(priority, seconds, out.optimal);
    out.priority = -most.cost;
    out.priority_bound = -most.bound;
    take(most, out);
    hold(priority, most.cost);
    const IntegerSolution cheapest = best(price, seconds, out.optimal);
    if (cheapest.found) take(cheapest, out);
    out.cost = cheapest.found ? cheapest.cost : cost_of(out);
    out.cost_bound = std::max(cheapest.bound, 0.0);
    hold(price, out.cost);
    bool tidy = true;  // that fewer GPUs would do is no fault of the answer
    const IntegerSolution fewest = best(gpus, seconds, tidy);
    if (fewest.found) take(fewest, out);
    return out;
  }

 private:
  void add_job(std::size_t j) {
    const reports::FleetJob& job = fleet_.jobs[j];
    const auto most = static_cast<double>(job.count);
    IntegerProgram::Row row{{}, 0, most};
    for (std::size_t o = 0; o < job.options.size(); ++o) {
      if (!job.options[o].possible) continue;
      const std::size_t column = program_.add_column({0, most, 0});
      chosen_.push_back({j, o, column});
      row.terms.push_back({column, 1});
    }
    if (!row.terms.empty()) program_.rows.push_back(std::move(row));
  }

  // Sizes of at most a node, the largest first, and the columns of jobs that have them.
  void add_pool(std::size_t p, bool may_buy) {
    const FleetPool& pool = fleet_.pools[p];
    std::map<std::int64_t, std::vector<std::size_t>, std::greater<>> of_size;
    IntegerProgram::Row whole_nodes{{}, 0, static_cast<double>(pool.full_nodes())};
    for (const auto& [job, option, column] : chosen_) {
      const FleetOption& o = fleet_.jobs[job].options[option];
      if (o.pool != p) continue;
      if (o.gpus <= pool.gpus_per_node)
        of_size[o.gpus].push_back(column);
      else
        whole_nodes.terms.push_back({column, static_cast<double>(o.gpus / pool.gpus_per_node)});
    }
    bought_.emplace_back();
    if (may_buy && pool.price) {
      const double most = pool.most_gpus
                              ? static_cast<double>(std::max<std::int64_t>(
                                    0, (*pool.most_gpus - pool.gpus) / pool.gpus_per_node))
                              : kMostNodes;
      bought_.back() = program_.add_column({0, most, 0});
      whole_nodes.terms.push_back({*bought_.back(), -1});
    }
    std::vector<IntegerProgram::Row> seats;
    for (const auto& [size, columns] : of_size) {
      IntegerProgram::Row& row = seats.emplace_back(IntegerProgram::Row{{}, kNoLimit, 0});
      for (const std::size_t column : columns) row.terms.push_back({column, 1});
    }
    std::vector<std::int64_t> sizes;
    for (const auto& [size, columns] : of_size) sizes.push_back(size);
    add_patterns(pool, sizes, pool.gpus_per_node, &whole_nodes, seats);
    if (pool.gpus_of_last_node() > 0)
      add_patterns(pool, sizes, pool.gpus_of_last_node(), nullptr, seats);
    if (!whole_nodes.terms.empty()) {
      whole_nodes.least = kNoLimit;
      program_.rows.push_back(std::move(whole_nodes));
    }
    for (IntegerProgram::Row& row : seats) program_.rows.push_back(std::move(row));
  }

  // How many nodes of `gpus` are shared in each way; `nodes` limits their number (nullptr: one
  // node).
  void add_patterns(const FleetPool& pool, const std::vector<std::int64_t>& all, std::int64_t gpus,
                    IntegerProgram::Row* nodes, std::vector<IntegerProgram::Row>& seats) {
    std::vector<std::int64_t> sizes;
    for (const std::int64_t size : all)
      if (size <= gpus) sizes.push_back(size);
    if (sizes.empty()) return;
    const auto patterns = full_patterns(gpus, sizes, kMostPatterns);
    check(!patterns.empty(), ErrorKind::bad_input, [&] {
      return fmt::format(
          "pool '{}': jobs of {} sizes can share a node of {} GPUs in more than {} ways; let jobs "
          "take fewer sizes (\"gpus\")",
          pool.name, sizes.size(), gpus, kMostPatterns);
    });
    IntegerProgram::Row one{{}, 0, 1};
    const std::size_t first = all.size() - sizes.size();  // the largest are left out
    for (const std::vector<std::int64_t>& pattern : patterns) {
      const std::size_t column = program_.add_column({0, nodes ? kMostNodes : 1, 0});
      (nodes ? nodes : &one)->terms.push_back({column, 1});
      for (std::size_t i = 0; i < sizes.size(); ++i)
        if (pattern[i] > 0)
          seats[first + i].terms.push_back({column, -static_cast<double>(pattern[i])});
    }
    if (!nodes) program_.rows.push_back(std::move(one));
  }

  IntegerSolution best(const std::vector<double>& cost, double seconds, bool& optimal) {
    if (std::ranges::all_of(cost, [](double c) { return c == 0; })) return {};
    for (std::size_t i = 0; i < cost.size(); ++i) program_.columns[i].cost = cost[i];
    IntegerSolution solution = solve(program_, seconds);
    optimal = optimal && solution.found && solution.optimal;
    return solution;
  }

  // From here on no more than `most` of this cost.
  void hold(const std::vector<double>& cost, double most) {
    IntegerProgram::Row row{{}, kNoLimit, most + 1e-9 * std::max(1.0, std::abs(most))};
    for (std::size_t i = 0; i < cost.size(); ++i)
      if (cost[i] != 0) row.terms.push_back({i, cost[i]});
    if (!row.terms.empty()) program_.rows.push_back(std::move(row));
  }

  void take(const IntegerSolution& from, FleetSolution& out) const {
    if (!from.found) return;
    out.placements.clear();
    for (const auto& [job, option, column] : chosen_)
      if (from.values[column] > 0) out.placements.push_back({job, option, from.values[column]});
    for (std::size_t p = 0; p < bought_.size(); ++p)
      out.bought_nodes[p] = bought_[p] ? from.values[*bought_[p]] : 0;
  }

  double cost_of(const FleetSolution& solution) const {
    double cost = 0;
    for (std::size_t p = 0; p < fleet_.pools.size(); ++p)
      cost += fleet_.pools[p].price.value_or(0) *
              static_cast<double>(fleet_.pools[p].gpus_per_node * solution.bought_nodes[p]);
    return cost;
  }

  struct Chosen {
    std::size_t job, option, column;
  };
  const Fleet& fleet_;
  IntegerProgram program_;
  std::vector<Chosen> chosen_;
  std::vector<std::optional<std::size_t>> bought_;  // the column of each pool
};
}  // namespace

std::vector<std::vector<std::int64_t>> full_patterns(std::int64_t gpus,
                                                     const std::vector<std::int64_t>& sizes,
                                                     std::size_t most) {
  std::vector<std::vector<std::int64_t>> out;
  std::vector<std::int64_t> pattern(sizes.size());
  if (!sizes.empty()) extend(gpus, sizes, 0, most, pattern, out);
  if (out.size() > most) out.clear();
  return out;
}

void place(Fleet& fleet, double seconds) {
  fleet.solver = solver_version();
  fleet.seconds = seconds;
  fleet.owned = Placement(fleet, false).solved(seconds);
  const bool can_buy = std::ranges::any_of(
      fleet.pools, [](const FleetPool& pool) { return pool.price.has_value(); });
  if (fleet.fits() || !can_buy) return;
  FleetSolution bought = Placement(fleet, true).solved(seconds);
  if (bought.priority > fleet.owned.priority) fleet.purchase = std::move(bought);
}

}  // namespace plimsoll::tools
