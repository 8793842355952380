// What a stack contributes to a plan: the step's program, and the facts around it.
#pragma once

#include <vector>

#include "models/step_program.h"
#include "planner/model_parts.h"
#include "planner/plan.h"
#include "reports/record.h"

namespace plimsoll::planner {

struct StackStep {
  models::StepProgram program;
  reports::States states;
  std::vector<reports::Collective> collectives;
  Bytes sent;  // by one GPU in one step
  std::vector<reports::Assumption> assumptions;
  // Reserved bytes by torch's caching allocator; otherwise by our own runtime's arena.
  bool caching_allocator = false;
  // Set by who asks for many programs: only `program` is needed, and no text.
  bool program_only = false;
};

// Writes the step of the question's stack. Throws Error{unsupported} naming what it cannot.
void write_step(const Question& question, const ModelParts& parts, StackStep& step);

}  // namespace plimsoll::planner
