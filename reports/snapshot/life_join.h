// Tensors of a plan's step and allocations of a history, of equal sizes, paired.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "reports/snapshot/memory_snapshot.h"

namespace plimsoll::reports {

// One life within a step, planned (moments are ops) or measured (moments are events).
struct Life {
  std::int64_t size = 0;  // its class (step_window.h)
  std::int64_t born = -1, died = 0;
  bool stays = false;  // lives on after the step; then `died` does not count
  SnapshotStack::Phase phase = SnapshotStack::Phase::unknown;
  bool own = false;  // measured: asked for by the user's own line, not by a library
};

struct JoinedLives {
  std::vector<std::pair<std::size_t, std::size_t>> pairs;  // planned, measured; each index once
  // One planned, several measured: what a plan takes together is allocated piece by piece.
  std::vector<std::pair<std::size_t, std::vector<std::size_t>>> parts;
  // Measured, without a partner, gone within two ops of the plan: scratch of one operator.
  std::vector<std::size_t> scratch;
};

// Both in the order of their births. `ops`: how many moments the plan has; `begin`, `end`: the
// events between which the step is.
JoinedLives join_lives(std::span<const Life> planned, std::span<const Life> measured,
                       std::int64_t ops, std::int64_t begin, std::int64_t end);

}  // namespace plimsoll::reports
