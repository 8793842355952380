// A step program unrolled: every instance's lifetime, the memory at every op, by category.
// Written without any of peak.h's shortcuts, and checked against it (tests/planner/peak_test.cpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/step_program.h"
#include "planner/program/peak.h"
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
  // Indices into `lifetimes`, in the order of the first touch: ops, then operands.
  std::vector<std::size_t> touched;
  std::size_t peak_step = 0;  // the first that reaches the highest high water
};

// Equal micro-batches (Segment::times): as they are stored, or one after another, each with
// tensors of its own. What is touched outside of them too is one tensor.
enum class Repeats { stored, all };

// Throws Error{internal} where an operand names an instance that does not exist.
Timeline unroll(const models::StepProgram& program, Repeats repeats = Repeats::stored);

// Ops that `unroll(program, Repeats::all)` walks.
std::int64_t ops_in_all(const models::StepProgram& program);

// What lives during `step` (its scratch included), by category. The categories sum to high_water.
reports::ByCategory categories_at(const models::StepProgram& program, const Timeline& timeline,
                                  std::size_t step);

// "layers.31.mlp.up_proj", or the plain name outside groups.
std::string name_of_tensor(const models::StepProgram& program, models::TensorId tensor,
                           std::int64_t instance);
std::string name_of_op(const models::StepProgram& program, const Position& at);

}  // namespace plimsoll::planner
