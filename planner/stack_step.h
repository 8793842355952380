// What a stack contributes to a plan: the step's program, and the facts around it.
#pragma once

#include <vector>

#include "models/step_program.h"
#include "planner/host_memory.h"
#include "planner/memory/start.h"
#include "planner/model_parts.h"
#include "planner/plan.h"
#include "planner/program/messages.h"
#include "planner/ranks.h"
#include "reports/record.h"

namespace plimsoll::planner {

// Micro-batches from the first to the last that differ in structure: the first, the last, and those
// between them, which are alike.
inline constexpr std::int64_t kDistinctMicroBatches = 3;

struct StackStep {
  // Whose step: one rank's, or with -1 that of the one that holds most; afterwards the rank that
  // was written.
  std::int64_t rank = -1;
  models::StepProgram program;
  reports::States states;
  Bytes managed;  // optimizer states in managed memory, which are not among them
  HostMemory host;  // of one rank
  Messages messages;  // where more than the program was asked for
  std::vector<reports::Assumption> assumptions;
  Start start;  // under a caching allocator: what comes before the first step
  // Reserved bytes by torch's caching allocator; otherwise by our own runtime's arena.
  bool caching_allocator = false;
  models::AllocatorConf allocator;
  // Set by who asks for many programs: only `program` is needed, and no text.
  bool program_only = false;
  std::vector<EqualRanks> ranks;  // all, where more than the program was asked for
};

// Writes the step of the question's stack. Throws Error{unsupported} naming what it cannot.
void write_step(const Question& question, const ModelParts& parts, StackStep& step);

}  // namespace plimsoll::planner
