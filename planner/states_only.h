// Model states without a step program: bare parameter counts, and models whose training step is
// not modelled yet.
#pragma once

#include "planner/plan.h"

namespace plimsoll::planner {

// The ZeRO paper's layout (see plan_states in plan.h).
reports::States zero_paper_states(Count parameters, const models::Strategy& strategy);

// States of the question's stack from the parameter table, split evenly over the ranks. Throws like
// plan(). `trainable` and `adapters` are counted by the caller.
reports::States table_states(Count parameters, Count trainable, Count adapters,
                             const models::Strategy& strategy);

struct ParameterCounts {
  Count total, trainable, active;
  Count adapters;  // part of total and trainable
};
ParameterCounts count_parameters(const models::ModelSpec& model, const models::Strategy& strategy);

}  // namespace plimsoll::planner
