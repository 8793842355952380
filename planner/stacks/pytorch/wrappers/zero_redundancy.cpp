// ZeroRedundancyOptimizer: which rank has the states of which parameters.
#include <algorithm>
#include <numeric>
#include <queue>
#include <utility>

#include "models/optimizers.h"
#include "planner/stacks/pytorch/wrappers/replicated.h"

namespace plimsoll::planner::pytorch {

namespace {

using Sizes = std::vector<std::pair<std::int64_t, Bytes>>;  // elements and bytes of parameters

// ZeroRedundancyOptimizer gives whole parameters to ranks: largest first, each to the rank that has
// least (zero_redundancy_optimizer.py, _partition_parameters).
using Shares = std::vector<std::vector<Bytes>>;  // of ranks
Shares partitioned(Sizes parameters, std::size_t count) {
  std::stable_sort(parameters.begin(), parameters.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  using Load = std::pair<std::int64_t, std::size_t>;  // elements, rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> ranks;
  // More ranks than parameters: the largest has a rank of its own, and the last ranks have none.
  for (std::size_t r = 0; r < std::min(count, parameters.size()); ++r) ranks.emplace(0, r);
  Shares shares(count);
  for (const auto& [elements, size] : parameters) {
    const Load least = ranks.top();
    ranks.pop();
    shares[least.second].push_back(size);
    ranks.emplace(least.first + elements, least.second);
  }
  return shares;
}

Bytes sum(const std::vector<Bytes>& all) {
  return std::accumulate(all.begin(), all.end(), Bytes(0));
}

struct Partition {
  Shares shares;
  std::vector<Bytes> totals;  // of ranks
};

// A search asks about the same parameters on as many GPUs again and again.
const Partition& known_partition(const Sizes& parameters, std::size_t ranks) {
  struct Known {
    Sizes parameters;
    std::size_t ranks = 0;
    Partition partition;
  };
  thread_local Known known;
  if (known.ranks != ranks || known.parameters != parameters) {
    known = {parameters, ranks, {partitioned(parameters, ranks), {}}};
    for (const auto& share : known.partition.shares) known.partition.totals.push_back(sum(share));
  }
  return known.partition;
}

}  // namespace

// Whole parameters to ranks; the written rank is the one that has most, unless one is asked for.
void Replicated::choose_partition() {
  Sizes parameters;
  const auto add = [&](const Unit& unit, std::int64_t copies) {
    for (const Parameter& p : *unit.parameters)
      for (std::int64_t i = 0; p.trainable && i < copies; ++i)
        parameters.emplace_back(p.elements, b_.rounded(storage(Count(p.elements), s_.stored(p))));
  };
  for (const Run& run : s_.runs) {
    const std::size_t period = run.plans.size();
    const std::int64_t copies = run.count * static_cast<std::int64_t>(run.stride() / period);
    for (std::size_t j = 0; j < period; ++j) add(run.units[j], copies);
  }
  add(s_.root, 1);
  const Partition& known = known_partition(parameters, static_cast<std::size_t>(group()));
  shares_ = known.totals;
  if (rules_.rank < 0)
    s_.rules.rank = std::max_element(shares_.begin(), shares_.end()) - shares_.begin();
  partition_ = known.shares[static_cast<std::size_t>(rules_.rank)];
}

std::vector<Bytes> Replicated::partition_blocks() const {
  if (rules_.each_parameter || partition_.empty()) return partition_;
  return {sum(partition_)};
}

void Replicated::declare_partition() {
  choose_partition();
  for (const Bytes part : partition_blocks())
    for (const models::StateTensor& kept : models::rule_of(strategy_.optimizer).states) {
      b_.tensor_in(models::kNoGroup, name_of(kept.name), part, Category::optimizer,
                   models::Residency::persistent);
      s_.states.optimizer += part;
    }
}

}  // namespace plimsoll::planner::pytorch
