// A step program unrolled: every instance's lifetime, the memory at every op, by category.
// Written without any of peak.h's shortcuts, and checked against it (tests/planner/peak_test.cpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/step_program.h"
#include "planner/peak.h"
#include "reports/record.h"

namespace plimsoll::planner {

// One tensor of one layer. Steps index Timeline::steps.
struct Lifetime {
  models::TensorId tensor = models::kNoTensor;
  std::int64_t instance = 0;  // layer within the group; 0 outside groups
  std::int64_t birth = -1;  // first step that touches it; -1: before the program (persistent)
  std::int64_t death = -1;  // last step that touches it; the number of steps for persistent ones
};

struct Moment {
  Position at;
  Bytes high_water;  // all that lives while the op runs, its scratch included
  Bytes after;  // what still lives when it is done
};

struct Timeline {
  std::vector<Moment> steps;
  std::vector<Lifetime> lifetimes;
  std::size_t peak_step = 0;  // the first that reaches the highest high water
};

// Throws Error{internal} where an operand names an instance that does not exist.
Timeline unroll(const models::StepProgram& program);

// What lives during `step` (its scratch included), by category. The categories sum to high_water.
reports::ByCategory categories_at(const models::StepProgram& program, const Timeline& timeline,
                                  std::size_t step);

// "layers.31.mlp.up_proj", or the plain name outside groups.
std::string name_of_tensor(const models::StepProgram& program, models::TensorId tensor,
                           std::int64_t instance);
std::string name_of_op(const models::StepProgram& program, const Position& at);

}  // namespace plimsoll::planner
