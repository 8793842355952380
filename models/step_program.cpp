#include "models/step_program.h"

namespace plimsoll::models {

StepProgram::Lengths StepProgram::lengths() const {
  return {tensors.size(), ops.size(), operands.size(), groups.size(), segments.size()};
}

void StepProgram::reserve(const Lengths& lengths) {
  tensors.reserve(lengths.tensors);
  ops.reserve(lengths.ops);
  operands.reserve(lengths.operands);
  groups.reserve(lengths.groups);
  segments.reserve(lengths.segments);
}

void StepProgram::clear() {
  tensors.clear();
  ops.clear();
  operands.clear();
  groups.clear();
  segments.clear();
}

}  // namespace plimsoll::models
