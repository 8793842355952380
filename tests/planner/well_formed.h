// What holds of every program that a stack writes, whatever it is of.
#pragma once

#include <string>

#include "models/step_program.h"

namespace plimsoll::tests {

// What is wrong with it; "" where nothing is. Every op is in one segment; in a group's, ops and
// tensors are of one of its layers, outside they are of none, and an op touches tensors of its own
// group alone or of none. A tensor of the step is written before it is read, and of no use to one
// op alone.
std::string ill_formed(const models::StepProgram& program);

}  // namespace plimsoll::tests
