// Edits of a step program, as a stack with a fault would have written it. Names are those of the
// decisions, without "layers.<i>.".
#pragma once

#include <cstdint>
#include <string_view>

#include "models/step_program.h"

namespace plimsoll::honesty {

// The first of that name. Fails the test where there is none.
models::TensorDecl& tensor(models::StepProgram& program, std::string_view name);
models::TensorId id_of(models::StepProgram& program, std::string_view name);
models::Op& op(models::StepProgram& program, std::string_view name, models::Phase phase);

// The op no longer touches the tensor.
void forget(models::StepProgram& program, models::Op& op, models::TensorId tensor);
// The op touches the tensor too.
void touch(models::StepProgram& program, models::Op& op, models::Operand operand);
void leave_out(models::StepProgram& program, std::string_view name, models::Phase phase);

}  // namespace plimsoll::honesty
