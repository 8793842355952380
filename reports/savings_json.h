// What techniques save, as the member `savings` of a plan's document.
#pragma once

#include "reports/json_writer.h"
#include "reports/record.h"

namespace plimsoll::reports {

// Nothing where they were not asked for.
void write_savings(JsonWriter& json, const Plan& plan);

}  // namespace plimsoll::reports
