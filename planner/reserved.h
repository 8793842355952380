// Reserved bytes of a program: its allocations in order, through the stack's allocator.
#pragma once

#include <list>
#include <optional>

#include "models/step_program.h"
#include "planner/caching_allocator.h"
#include "planner/start.h"
#include "planner/timeline.h"

namespace plimsoll::planner {

struct Reserved {
  bool fits = true;  // within the room
  Bytes reserved;  // largest sum of segments
  // Sums of blocks in use, as the allocator counts them: with the part of a block that was not
  // worth splitting off. The largest of the last step, and what stays between steps.
  Bytes allocated, resident;
  DriverCalls calls;  // of the last step
  bool flushed = false;  // at any time
};

// Two steps in a row, as a run begins: what the stack's start does, then parameters, the
// optimizer's states when the first step reaches its optimizer, then a whole step.
Reserved replay(const models::StepProgram& program, const Timeline& timeline, Room room,
                const Start& start = {}, const models::AllocatorConf& conf = {});

// What one question's step reserves where nothing is given back: who asks whether it fits and then
// plans it need not replay it twice.
struct Replays {
  std::optional<Reserved> needed;
  // Those of another rank's program, which belong to the same question.
  Replays& of_rank(std::int64_t rank);

 private:
  std::int64_t rank_ = -1;
  std::list<Replays> others_;  // who asks keeps a reference
};

}  // namespace plimsoll::planner
