// State what memory there is, and get the recomputation: `--recompute fit` and `budget:SIZE`.
#pragma once

#include <optional>
#include <vector>

#include "planner/plan.h"

namespace plimsoll::planner::search {

// What one recomputation takes: bytes as plan() says, seconds of a step (0: no rates are known of
// the GPU).
struct PolicyCost {
  models::Recompute recompute;
  Bytes peak, device;
  double seconds = 0;
  bool holds = false;  // the budget
};

struct PolicyChoice {
  PolicyCost chosen;  // where none holds the budget, the one that needs least
  std::vector<PolicyCost> fixed;  // none, selective, full: as one would choose without looking
  std::int64_t compared = 0;  // recomputations that the stack plans
};

// The fastest of all recomputations whose planned peak is at most `peak`, or, without one, whose
// plan fits the device: none, selective, each whole number of layers in a checkpoint, checkpoints
// around each number of the first layers, and, where the stack has it, each subset of what a
// checkpoint by operator can keep, the same in every layer. By the time model; where the GPU's
// rates are not known, by FLOPs. All are compared: they are tried from the fastest on, until one
// holds. Error{bad_input}: neither a peak nor a capacity.
PolicyChoice cheapest_recompute(const Question& question, const std::optional<Bytes>& peak);

}  // namespace plimsoll::planner::search
