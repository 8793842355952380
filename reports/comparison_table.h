// A comparison for a terminal of 80 columns.
#pragma once

#include <string>

#include "reports/comparison.h"
#include "reports/text.h"

namespace plimsoll::reports {

std::string comparison_table(const Comparison& comparison, const Terminal& terminal);

}  // namespace plimsoll::reports
