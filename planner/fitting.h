// What a step's allocator reserves within the room that a card leaves to it, and whether it fits.
#pragma once

#include <optional>

#include "planner/outside.h"
#include "planner/peak.h"
#include "planner/plan.h"
#include "planner/reserved.h"
#include "planner/stack_step.h"
#include "planner/timeline.h"

namespace plimsoll::planner {

struct Fitting {
  const StackStep& step;
  const Timeline& timeline;
  const Peak& peak;
  const Capacity& capacity;
  const Outside& outside;
  Replays& replays;  // of this step: what was made, and what is

  // Beside typical overheads. Where that does not fit: about the least room beyond that with which
  // the step would run (a full allocator gives cached segments back, so the figure without any
  // limit says too much).
  Reserved reserved() const;
  // With every assumed overhead at its high end. `typical`: reserved().
  reports::HighEnd at_high_end(const Reserved& typical) const;
  // Whether both would fit (the second where `overheads` asks for it), with fewer replays.
  bool fits(Overheads overheads) const;

 private:
  // What segments may take beside `outside`.
  std::optional<Bytes> limit_beside(Bytes outside) const;
  Reserved within(std::optional<Bytes> limit) const;
  Bytes with_more(Bytes reserved) const;
  std::optional<Bytes> high_limit() const;
  bool fits_high(Bytes reserved) const;
  bool fits_typically() const;
};

}  // namespace plimsoll::planner
