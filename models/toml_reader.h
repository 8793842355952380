// TOML text from a stranger, as JSON text.
#pragma once

#include <string>
#include <string_view>

namespace plimsoll::models {

// Tables become objects; dates become strings. Error{bad_input} naming `source` and the line: not
// TOML 1.0, a number that JSON has not (inf, nan), nested deeper than 64.
std::string json_from_toml(std::string_view text, const std::string& source);

}  // namespace plimsoll::models
