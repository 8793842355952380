// A plan for reading in a terminal: the verdict first, then where the memory goes.
#pragma once

#include <string>
#include <vector>

#include "reports/record.h"
#include "reports/text.h"

namespace plimsoll::reports {

// Lines of at most terminal.columns, each with its line feed.
std::string plan_table(const Plan& plan, const Terminal& terminal);

// What of it several tables have: changes that would help (there must be one).
std::string remedies_table(const std::vector<Remedy>& remedies, const Terminal& terminal);

}  // namespace plimsoll::reports
