// A document against its JSON Schema (draft 7), as far as the files of reports/schema/ use it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace plimsoll::reports {

// The schema of that name ("plan", "measurement"), compiled in; "": there is none.
std::string_view schema_text(std::string_view name);

// What is wrong with `value`: "ranks[0].peak_bytes is -5, but a whole number from 0 is needed"; "":
// nothing. Whole numbers must be below 2^63. Error{internal}: a word of the schema that is not
// known here.
std::string complaint(const nlohmann::json& schema, const nlohmann::json& value);

}  // namespace plimsoll::reports
