// The steps of all ranks: one of each kind is planned, and the one with the highest peak is shown.
#pragma once

#include <optional>
#include <vector>

#include "planner/memory/framework_overhead.h"
#include "planner/memory/reserved.h"
#include "planner/plan.h"
#include "planner/program/timeline.h"
#include "planner/stack_step.h"

namespace plimsoll::planner {

// At most so many kinds are planned: a step of llama-3.1-405b takes 15 ms to replay, and
// DeepSpeed's ZeRO-2 has 939 kinds of it on 1,024 ranks.
inline constexpr std::size_t kMostKinds = 24;

struct AllRanks {
  StackStep step;  // of the rank with the highest peak
  Timeline timeline;
  Peak peak;
  Reserved allocator;
  std::vector<reports::RankKind> kinds;  // that one's first
  std::size_t kinds_in_all = 1;  // more than kMostKinds: each planned one stands for others
  Bytes reserved;  // the most that any rank reserves
  reports::HighEnd high_end;  // of the rank that comes out highest
  // Where a rank needs more than there is room for, and each that does runs all the same with an
  // allocator that gives cached segments back: the one that then reserves most.
  std::optional<Reserved> flushing;
};

// `capacity`, `overhead` and `replays`: of the question.
AllRanks plan_all_ranks(const Question& question, const ModelParts& parts, const Capacity& capacity,
                        const FrameworkOverhead& overhead, Replays& replays);

// Whether each of them fits, without the rest; where one does not, that ends it.
Fit all_ranks_fit(const Question& question, const ModelParts& parts, const Capacity& capacity,
                  const FrameworkOverhead& overhead, Overheads overheads, Replays& replays);

}  // namespace plimsoll::planner
