// Reserved bytes of a program: its allocations in order, through the stack's allocator.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "models/step_program.h"
#include "planner/start.h"
#include "planner/timeline.h"

namespace plimsoll::planner {

struct Reserved {
  bool fits = true;  // within the capacity
  Bytes reserved;  // largest sum of segments
  // Sums of blocks in use, as the allocator counts them: with the part of a block that was not
  // worth splitting off. The largest of the last step, and what stays between steps.
  Bytes allocated, resident;
  bool gave_back = false;  // cached segments to the driver, to have room
};

// Two steps in a row, as a run begins: what the stack's start does, then parameters, the
// optimizer's states when the first step reaches its optimizer, then a whole step. `capacity`: what
// segments may take; absent: no end.
Reserved replay(const models::StepProgram& program, const Timeline& timeline,
                std::optional<Bytes> capacity, const Start& start = {});

// Replays of one program that were made, each within its limit: who asks whether a step fits and
// then plans it need not replay it twice.
class Replays {
 public:
  // What a replay within `limit` gives, where one that was made says it.
  const Reserved* find(std::optional<Bytes> limit) const;
  void add(std::optional<Bytes> limit, const Reserved& reserved) {
    made_.emplace_back(limit, reserved);
  }
  // Those of another rank's program, which belong to the same question.
  Replays& of_rank(std::int64_t rank);

 private:
  std::vector<std::pair<std::int64_t, std::unique_ptr<Replays>>> others_;
  std::vector<std::pair<std::optional<Bytes>, Reserved>> made_;
};

}  // namespace plimsoll::planner
