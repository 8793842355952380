// What our own runtime's arena reserves for a step (models/decisions/workspace.h): the step's
// allocations in order, placed one by one. Written from the rule; the runtime's arena is another
// implementation of it, so that one can be held against the other.
#pragma once

#include <cstdint>
#include <vector>

#include "models/step_program.h"
#include "planner/program/timeline.h"

namespace plimsoll::planner {

// Addresses of one arena, from 0.
class FirstFit {
 public:
  // The lowest address with room for `bytes` (> 0) rounded up to decisions::kBlock.
  std::int64_t place(std::int64_t bytes);
  void release(std::int64_t address, std::int64_t bytes);
  std::int64_t reserved() const { return reserved_; }  // end of the highest block there ever was

 private:
  struct Hole {
    std::int64_t begin, end;
  };
  std::vector<Hole> holes_;  // by address, below `end_`; no two touch one another
  std::int64_t end_ = 0;  // of the highest block in use
  std::int64_t reserved_ = 0;
};

// Persistent tensors come first. An op's new tensors are placed in the order of its operands, then
// its scratch; what dies with it is given back when it is done. Every later step finds what this
// one found, so one is enough; so is one of several equal micro-batches.
Bytes arena_reserved(const models::StepProgram& program, const Timeline& timeline);

}  // namespace plimsoll::planner
