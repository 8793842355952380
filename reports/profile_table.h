// Where a step's time went, for a terminal.
#pragma once

#include <string>

#include "reports/measurement.h"
#include "reports/text.h"

namespace plimsoll::reports {

// The `rows` that took the most, what all others took, and the time between kernels.
std::string profile_table(const Profile& profile, std::size_t rows, const Terminal& terminal);

}  // namespace plimsoll::reports
