// What a step's allocator reserves, whether the card has room for it, and whether the step would
// run there all the same.
#pragma once

#include <optional>

#include "planner/memory/framework_overhead.h"
#include "planner/memory/reserved.h"
#include "planner/plan.h"
#include "planner/program/peak.h"
#include "planner/program/timeline.h"
#include "planner/stack_step.h"

namespace plimsoll::planner {

struct Fitting {
  const StackStep& step;
  const Timeline& timeline;
  const Peak& peak;
  const Capacity& capacity;
  const FrameworkOverhead& overhead;
  Replays& replays;  // of this step: what was made, and what is

  // What the step reserves where there is room: the same on every card.
  Reserved needed() const;
  // Where that is more than there is room for: the same step with an allocator that gives cached
  // segments back to the driver, where it runs then. Once it runs with some room it does so with
  // any more.
  std::optional<Reserved> flushing() const;
  // With every assumed overhead at its high end, and the allocator after unlucky steps.
  reports::HighEnd at_high_end() const;
  // Whether what is needed fits (at its high end as well where `overheads` asks for it); no longer
  // replayed than until it does not.
  bool fits(Overheads overheads) const;

 private:
  Bytes unlucky() const;
  Bytes with_more(Bytes reserved) const;
  Bytes most_at_high_end() const;  // that may be reserved
  bool replay_within(Bytes limit, bool unluckily) const;
  bool fits(Bytes reserved, bool high) const;
};

}  // namespace plimsoll::planner
