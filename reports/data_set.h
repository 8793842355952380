// What a batch holds: rows that are not full of tokens, and what a data set makes of them.
#pragma once

#include <string>
#include <vector>

#include "reports/json_writer.h"
#include "reports/record.h"

namespace plimsoll::reports {

std::string rows_text(const Plan& plan);  // "": as usual
std::vector<std::string> data_lines(const Plan& plan);  // none without lengths
void write_data(JsonWriter& json, const Plan& plan);  // "data", where there are lengths

}  // namespace plimsoll::reports
