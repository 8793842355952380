#include "reports/fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace plimsoll::reports {

std::int64_t Fleet::jobs_in_all() const {
  std::int64_t all = 0;
  for (const FleetJob& job : jobs) all += job.count;
  return all;
}

bool Fleet::fits() const {
  return placed_jobs(owned) == jobs_in_all();
}

std::int64_t placed_jobs(const FleetSolution& solution) {
  std::int64_t placed = 0;
  for (const FleetPlacement& one : solution.placements) placed += one.count;
  return placed;
}

std::int64_t used_gpus(const Fleet& fleet, const FleetSolution& solution, std::size_t pool) {
  std::int64_t used = 0;
  for (const FleetPlacement& one : solution.placements) {
    const FleetOption& option = fleet.jobs[one.job].options[one.option];
    if (option.pool == pool) used += option.gpus * one.count;
  }
  return used;
}

std::vector<std::int64_t> left_over(const Fleet& fleet, const FleetSolution& solution) {
  std::vector<std::int64_t> left;
  for (const FleetJob& job : fleet.jobs) left.push_back(job.count);
  for (const FleetPlacement& one : solution.placements) left[one.job] -= one.count;
  return left;
}

std::string obstacle_text(const FleetJob& job, std::size_t pool) {
  const FleetOption* nearest = nullptr;  // of those that do not fit
  const auto shortage = [](const FleetOption& o) { return *o.device - *o.usable; };
  for (const FleetOption& option : job.options) {
    if (option.pool != pool) continue;
    const bool has = option.device && option.usable && !option.fits;
    const bool had = nearest && nearest->device && nearest->usable && !nearest->fits;
    if (!nearest || (has && (!had || shortage(option) < shortage(*nearest)))) nearest = &option;
  }
  if (!nearest) return "not asked";
  return nearest->why;
}

std::string price_text(const Fleet& fleet, double price) {
  std::string digits = std::fabs(price - std::round(price)) < 0.005
                           ? grouped(Count(static_cast<std::int64_t>(std::round(price))))
                           : fmt::format("{:.2f}", price);
  return fleet.currency.empty() ? digits : digits + " " + fleet.currency;
}

std::string bound_text(const FleetSolution& solution) {
  if (solution.optimal) return "proven best";
  if (solution.priority < solution.priority_bound * (1 - 1e-9))
    return fmt::format("time ran out: at most {:.1f} % better exists",
                       100 * (solution.priority_bound / solution.priority - 1));
  if (solution.cost > 0)
    return fmt::format("time ran out: at most {:.1f} % above the cheapest",
                       100 * (solution.cost / std::max(solution.cost_bound, 1e-9) - 1));
  return "time ran out before it was proven best";
}

namespace {
std::string jobs_text(std::int64_t n) {
  return fmt::format("{} job{}", grouped(Count(n)), n == 1 ? "" : "s");
}

std::int64_t gpus_of(const Fleet& fleet, const FleetSolution& solution) {
  std::int64_t gpus = 0;
  for (std::size_t p = 0; p < fleet.pools.size(); ++p) gpus += used_gpus(fleet, solution, p);
  return gpus;
}
}  // namespace

std::string fleet_verdict(const Fleet& fleet) {
  const std::int64_t all = fleet.jobs_in_all(), placed = placed_jobs(fleet.owned);
  std::int64_t owned = 0;
  for (const FleetPool& pool : fleet.pools) owned += pool.gpus;
  if (fleet.fits())
    return fmt::format("ALL FIT: {} run at once on {} of {} GPUs", jobs_text(all),
                       grouped(Count(gpus_of(fleet, fleet.owned))), grouped(Count(owned)));
  const std::string now =
      fmt::format("{} of {} run at once on what is there", grouped(Count(placed)), jobs_text(all));
  if (!fleet.purchase) return "NOT ENOUGH: " + now;
  const std::int64_t then = placed_jobs(*fleet.purchase);
  return fmt::format("BUY for {}: then {} of {} run at once, now {}",
                     price_text(fleet, fleet.purchase->cost), grouped(Count(then)), jobs_text(all),
                     grouped(Count(placed)));
}

}  // namespace plimsoll::reports
