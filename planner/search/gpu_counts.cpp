// The numbers of GPUs that are tried.
#include <algorithm>
#include <functional>

#include "planner/search/axes.h"

namespace plimsoll::planner::search {

namespace {

// 1, 2, 3 … in steps that stay below 1 %.
std::vector<std::int64_t> about_every(std::int64_t most) {
  std::vector<std::int64_t> out;
  for (std::int64_t n = 1, step = 1; n <= most; n += step) {
    out.push_back(n);
    if (n >= 128 * step) step *= 2;
  }
  return out;
}

std::vector<std::int64_t> halves(std::int64_t most) {
  std::vector<std::int64_t> out;
  for (std::int64_t n = 1; n < most; n *= 2) out.push_back(n);
  return out;
}

// Of `gpus` ranks as many on each node as on every other, at most as many nodes as there are; 0:
// they cannot be laid out so.
std::int64_t ranks_per_node(std::int64_t gpus, std::int64_t node, std::int64_t nodes) {
  if (gpus <= node) return node;
  for (std::int64_t each = node; each >= 1 && gpus <= each * nodes; --each)
    if (gpus % each == 0) return each;
  return 0;
}

std::vector<std::int64_t> numbers(const Scope& scope, std::int64_t node) {
  const std::int64_t most = scope.gpus;
  if (scope.global_batch) {
    std::vector<std::int64_t> all = divisors(*scope.global_batch);
    std::erase_if(all, [&](std::int64_t n) { return n > most; });
    return all;
  }
  if (scope.objective != Objective::throughput && scope.objective != Objective::gpus)
    return halves(most);
  std::vector<std::int64_t> all = about_every(std::min(node, most));
  for (const std::int64_t nodes : about_every(most / node))
    if (nodes > 1) all.push_back(nodes * node);
  if (most >= node) all.push_back(node);
  return all;
}

}  // namespace

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> small, large;
  for (std::int64_t d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    small.push_back(d);
    if (d != n / d) large.push_back(n / d);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

std::vector<GpuCount> gpu_counts(const Scope& scope) {
  const std::int64_t node = scope.base.strategy.gpus_per_node, most = scope.gpus;
  std::vector<std::int64_t> all{most};
  if (!scope.fixed.contains("gpus")) {
    const std::vector<std::int64_t> more = numbers(scope, node);
    all.insert(all.end(), more.begin(), more.end());
  }
  std::ranges::sort(all, std::greater<>());
  all.erase(std::ranges::unique(all).begin(), all.end());
  std::vector<GpuCount> counts;
  for (const std::int64_t n : all) {
    if (scope.global_batch && *scope.global_batch % n != 0) continue;
    const std::int64_t each = n == most ? node : ranks_per_node(n, node, ceil_divide(most, node));
    if (each > 0) counts.push_back({n, each});
  }
  return counts;
}

}  // namespace plimsoll::planner::search
