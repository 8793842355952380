// Model states without a step program: bare parameter counts, and models whose training step is
// not modelled yet.
#pragma once

#include "planner/plan.h"

namespace plimsoll::planner {

// The ZeRO paper's layout (see plan_states in plan.h).
reports::States zero_paper_states(Count parameters, const models::Strategy& strategy);

struct ParameterCounts {
  Count total, trainable, active;
  Count adapters;  // part of total and trainable
};

// What a stack keeps of them, before it is sharded; and from which --zero on it is.
struct TableStates {
  reports::States whole;
  int parameters_from = 0, gradients_from = 0, optimizer_from = 0;
};

// States of the question's stack from the parameter table, split evenly over the ranks. Throws like
// plan().
reports::States table_states(const ParameterCounts& counts, const models::Strategy& strategy);

ParameterCounts count_parameters(const models::ModelSpec& model, const models::Strategy& strategy);

}  // namespace plimsoll::planner
