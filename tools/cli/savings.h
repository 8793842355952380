// What each technique saves, for the page of a plan.
#pragma once

#include "reports/record.h"
#include "tools/cli/request.h"

namespace plimsoll::tools {

// Each technique takes a plan of its own, with progress on standard error unless `quiet`. Of a plan
// that does not fit only those that are used: what would help is another list. Nothing for model
// states alone.
void add_savings(const Request& request, bool quiet, reports::Plan& plan);

}  // namespace plimsoll::tools
