// How well the estimate compares ways of training: pairs of published runs of one source, model,
// card and sequence length that differ in strategy.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "tests/planner/throughput_rows.h"

namespace plimsoll::tests {

namespace {

auto workload(const ThroughputRow& row) {
  return std::tuple(row.source, row.model, row.gpu, row.batch.seq_len, row.strategy.compile,
                    row.strategy.kernels, row.strategy.lora.has_value());
}

bool other_strategy(const ThroughputRow& a, const ThroughputRow& b) {
  return !(a.strategy == b.strategy);
}

}  // namespace

Comparisons comparisons(const ThroughputRows& all) {
  const auto kind = [](const ThroughputRow& row) {
    return std::pair(row.strategy.stack, row.strategy.data.zero);
  };
  Comparisons out;
  for (auto a = all.rows.begin(); a != all.rows.end(); ++a)
    for (auto b = std::next(a); b != all.rows.end(); ++b) {
      if (workload(*a) != workload(*b) || !other_strategy(*a, *b)) continue;
      const double error =
          std::log(a->estimated / b->estimated) - std::log(a->published / b->published);
      (kind(*a) == kind(*b) ? out.one_kind : out.two_kinds).push_back(std::abs(error));
      const bool shards = a->strategy.data.zero > 0, other = b->strategy.data.zero > 0;
      if (shards != other) out.flattery_of_sharding.push_back(shards ? error : -error);
    }
  for (std::vector<double>* errors : {&out.one_kind, &out.two_kinds, &out.flattery_of_sharding})
    std::ranges::sort(*errors);
  return out;
}

}  // namespace plimsoll::tests
