// What loading the model takes, in the table of a plan.
#pragma once

#include "reports/record.h"
#include "reports/table_lines.h"

namespace plimsoll::reports {

// What has to fit: what the step needs, or the load where that is more.
Bytes needed_device(const Plan& plan);

void add_load(Lines& lines, const Plan& plan);

}  // namespace plimsoll::reports
