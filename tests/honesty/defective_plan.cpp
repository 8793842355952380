#include "tests/honesty/defective_plan.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace plimsoll::honesty {

using models::kNoTensor;
using models::Op;
using models::Operand;
using models::Phase;
using models::StepProgram;
using models::TensorId;

TensorId id_of(StepProgram& program, std::string_view name) {
  const auto found = std::ranges::find(program.tensors, name, &models::TensorDecl::name);
  REQUIRE_MESSAGE(found != program.tensors.end(), "no tensor ", std::string(name));
  return static_cast<TensorId>(found - program.tensors.begin());
}

models::TensorDecl& tensor(StepProgram& program, std::string_view name) {
  return program.tensors[static_cast<std::size_t>(id_of(program, name))];
}

Op& op(StepProgram& program, std::string_view name, Phase phase) {
  const auto found = std::ranges::find_if(
      program.ops, [&](const Op& op) { return op.name == name && op.phase == phase; });
  REQUIRE_MESSAGE(found != program.ops.end(), "no op ", std::string(name));
  return *found;
}

void forget(StepProgram& program, Op& op, TensorId tensor) {
  bool found = false;
  for (std::uint32_t i = op.operand_begin; i < op.operand_begin + op.operand_count; ++i) {
    Operand& operand = program.operands[i];
    if (operand.tensor != tensor) continue;
    operand.tensor = kNoTensor;
    found = true;
  }
  REQUIRE(found);
}

// Operands of an op stand side by side: all of them move to the end.
void touch(StepProgram& program, Op& op, Operand operand) {
  std::vector<Operand> all(program.operands_of(op).begin(), program.operands_of(op).end());
  all.push_back(operand);
  op.operand_begin = static_cast<std::uint32_t>(program.operands.size());
  op.operand_count = static_cast<std::uint32_t>(all.size());
  program.operands.insert(program.operands.end(), all.begin(), all.end());
}

void leave_out(StepProgram& program, std::string_view name, Phase phase) {
  const auto at = static_cast<std::uint32_t>(&op(program, name, phase) - program.ops.data());
  program.ops.erase(program.ops.begin() + at);
  for (models::Segment& segment : program.segments) {
    if (segment.op_begin > at) --segment.op_begin;
    if (segment.op_end > at) --segment.op_end;
  }
}

}  // namespace plimsoll::honesty
