// Why a plan does not fit: the first tensor that has no room, where, and what lives then.
#pragma once

#include <string>

#include "reports/record.h"
#include "reports/text.h"

namespace plimsoll::reports {

// Of a plan with full detail that does not fit.
std::string want_of_memory(const Plan& plan, const Terminal& terminal);

}  // namespace plimsoll::reports
