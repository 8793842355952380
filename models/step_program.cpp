#include "models/step_program.h"

namespace plimsoll::models {

void StepProgram::clear() {
  tensors.clear();
  ops.clear();
  operands.clear();
  groups.clear();
  segments.clear();
}

}  // namespace plimsoll::models
