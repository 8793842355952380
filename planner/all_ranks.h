// The steps of all ranks: one of each kind is planned, and the one with the highest peak is shown.
#pragma once

#include <optional>
#include <vector>

#include "planner/outside.h"
#include "planner/plan.h"
#include "planner/reserved.h"
#include "planner/stack_step.h"
#include "planner/timeline.h"

namespace plimsoll::planner {

struct AllRanks {
  StackStep step;  // of the rank with the highest peak
  Timeline timeline;
  Peak peak;
  Reserved allocator;
  std::vector<reports::RankKind> kinds;  // that one's first
  Bytes reserved;  // the most that any rank reserves
  reports::HighEnd high_end;  // of the rank that comes out highest
  // Where a rank needs more than there is room for, and each that does runs all the same with an
  // allocator that gives cached segments back: the one that then reserves most.
  std::optional<Reserved> flushing;
};

// `capacity`, `outside` and `replays`: of the question.
AllRanks plan_all_ranks(const Question& question, const ModelParts& parts, const Capacity& capacity,
                        const Outside& outside, Replays& replays);

// Whether each of them fits, without the rest; where one does not, that ends it.
Fit all_ranks_fit(const Question& question, const ModelParts& parts, const Capacity& capacity,
                  const Outside& outside, Overheads overheads, Replays& replays);

}  // namespace plimsoll::planner
