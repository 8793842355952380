// What is searched, what is held fixed, and what counts as best.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "planner/plan.h"

namespace plimsoll::planner::search {

enum class Objective : std::uint8_t {
  throughput,  // most tokens/s
  gpus,  // fewest GPUs
  context,  // longest sequence
  batch,  // most sequences at once on all GPUs
  memory,  // least memory on each GPU
};

// Plans of different kinds (stack, stage of ZeRO) whose speeds are nearer to each other than this
// are equal: the estimate cannot tell them apart for sure. Nine of ten such comparisons are that
// good (reports/accuracy.md, Comparisons: 391 pairs of published runs, the median 2.6 %), and no
// more do nine of ten sharded runs look faster than they are: what takes more setting up must be
// faster by more. Few of the pairs have two frameworks.
constexpr double kTieMargin = 0.08;
// Likewise of plans of one kind, of which two of three comparisons are that good (361 pairs).
constexpr double kSameKindMargin = 0.04;

struct Scope {
  Question base;  // model and cluster; strategy and batch as the user gave them
  Objective objective = Objective::throughput;
  std::int64_t gpus = 1;  // at most so many are used
  std::set<std::string, std::less<>> fixed;  // axes that keep the base's value
  // Per axis the values that may be taken, or may not, in the words of the command line.
  std::map<std::string, std::set<std::string>, std::less<>> only, without;
  std::optional<std::int64_t> global_batch;  // sequences of one optimizer step
  // A plan must fit with the overheads that are assumed at this end.
  Overheads overheads = Overheads::high_end;
  std::size_t top = 5;  // approaches in the ranked list
  std::size_t threads = 1;
  int most_concession = 255;  // Setting::concession
  // Looks at every point and skips nothing: what the pruned search is checked against.
  bool exhaustive = false;
};

}  // namespace plimsoll::planner::search
