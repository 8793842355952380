// Refusals that have a file of their own.
#pragma once

#include "models/run_spec.h"

namespace plimsoll::planner::pytorch {

// Error{unsupported}, {bad_input}: what asks for a packed base that is not planned.
void refuse_packed(const models::Strategy& s);

}  // namespace plimsoll::planner::pytorch
