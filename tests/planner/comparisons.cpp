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

std::vector<double> comparison_errors(const ThroughputRows& all) {
  std::vector<double> errors;
  for (auto a = all.rows.begin(); a != all.rows.end(); ++a)
    for (auto b = std::next(a); b != all.rows.end(); ++b)
      if (workload(*a) == workload(*b) && other_strategy(*a, *b))
        errors.push_back(std::abs(std::log(a->estimated / b->estimated) -
                                  std::log(a->published / b->published)));
  std::ranges::sort(errors);
  return errors;
}

}  // namespace plimsoll::tests
