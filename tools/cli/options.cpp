#include "tools/cli/options.h"

#include <array>

#include "models/base/utf8.h"

namespace plimsoll::tools {

namespace {
constexpr Option kOutputOptions[] = {
    {"json", "FILE", "Output", "write the JSON document; - for standard output"},
    {"quiet", "", "Output", "no table, no notes"},
};
}  // namespace

std::span<const Option> output_options() {
  return kOutputOptions;
}

const Option* find_option(std::string_view name) {
  for (const auto& options : {plan_options(), output_options()})
    for (const Option& option : options)
      if (option.name == name) return &option;
  return nullptr;
}

const std::string* Options::find(std::string_view name) const {
  for (const auto& [n, value] : given_)
    if (n == name) return &value;
  return nullptr;
}

std::vector<std::string> Options::all(std::string_view name) const {
  std::vector<std::string> values;
  for (const auto& [n, value] : given_)
    if (n == name) values.push_back(value);
  return values;
}

std::string Options::origin(std::string_view name) const {
  const auto found = origins_.find(name);
  return found == origins_.end() ? "" : found->second;
}

std::string Options::said(std::string_view name) const {
  const std::string* value = find(name);
  std::string text = "--" + std::string(name);
  if (value != nullptr && !value->empty()) text += " " + shortened(*value);
  const std::string from = origin(name);
  return from.empty() ? text : from + " (" + text + ")";
}

}  // namespace plimsoll::tools
