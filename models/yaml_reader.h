// YAML text from a stranger, as the JSON text that PyYAML's safe_load would give.
#pragma once

#include <string>
#include <string_view>

namespace plimsoll::models {

// Plain scalars are YAML 1.1's, as PyYAML reads them (resolver.py): `no` is false, '8' is a string,
// ~ is null; beside that 5e-5 is a number, which PyYAML takes for a string. Anchors and merge keys
// are followed. Error{bad_input} naming `source` and the line: not YAML, no document or several, a
// key twice, nested deeper than 64, or more than 100,000 values when all aliases are written out.
std::string json_from_yaml(std::string_view text, const std::string& source);

// A configuration in either: an object of JSON as it stands, anything else as YAML.
std::string json_from_json_or_yaml(std::string text, const std::string& source);

}  // namespace plimsoll::models
