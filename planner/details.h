// The parts of a plan that are read off the unrolled timeline: points, tensors, the peak's place.
#pragma once

#include "planner/plan.h"
#include "planner/program/timeline.h"
#include "reports/record.h"

namespace plimsoll::planner {

// Fills timeline and tensors: phase × layer boundaries and one line for equal tensors of all
// layers, or every op and every tensor with Detail::full.
void add_details(const models::StepProgram& program, const Timeline& timeline, Detail detail,
                 reports::Plan& plan);

reports::Place place_of(const models::StepProgram& program, const Position& at);

}  // namespace plimsoll::planner
