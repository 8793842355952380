#include "tools/cli/query_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "models/base/error.h"
#include "reports/json_writer.h"

namespace plimsoll::tools {

namespace {
using Json = nlohmann::json;

[[noreturn]] void refuse(std::string message) {
  fail(ErrorKind::bad_input, std::move(message));
}

std::string text_of(const std::string& key, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_number_float()) {
    const double number = value.get<double>();
    // 8.0 is 8 and 7.5e9 is a count.
    if (std::nearbyint(number) == number && std::fabs(number) < 1e15)
      return std::to_string(static_cast<std::int64_t>(number));
    return reports::number_text(number);
  }
  if (value.is_number()) return value.dump();
  refuse(fmt::format("\"{}\": must be a string, a number, true or false", key));
}

void add_list(Options& options, const Option& option, const Json& list) {
  std::string joined;
  for (const Json& item : list) {
    if (!item.is_string()) refuse(fmt::format("\"{}\": a list must hold strings", option.name));
    if (option.repeatable)
      options.add(option.name, item.get<std::string>());
    else
      joined += (joined.empty() ? "" : ",") + item.get<std::string>();
  }
  if (!option.repeatable) options.add(option.name, joined);
}

void add_member(Query& query, const std::string& key, const Json& value) {
  if (value.is_null()) return;
  if (key == "model") {
    if (!value.is_string()) refuse("\"model\": must be a string");
    query.model = value.get<std::string>();
    return;
  }
  std::string name = key;
  std::ranges::replace(name, '_', '-');
  const auto known = std::ranges::find(plan_options(), std::string_view(name), &Option::name);
  if (known == plan_options().end()) {
    const std::string near = nearest_option(name);
    refuse(fmt::format("unknown key \"{}\"{}", key.substr(0, 60),
                       near.empty() ? " (keys are \"model\" and the options of fit)"
                                    : fmt::format("; did you mean \"{}\"?", near)));
  }
  if (known->value.empty()) {
    if (!value.is_boolean()) refuse(fmt::format("\"{}\": must be true or false", key));
    if (value.get<bool>()) query.options.add(known->name, "");
  } else if (value.is_array()) {
    add_list(query.options, *known, value);
  } else {
    query.options.add(known->name, text_of(key, value));
  }
}
}  // namespace

Query query_from(std::string_view line) {
  const Json json = Json::parse(line, nullptr, false);
  if (json.is_discarded()) refuse("not JSON");
  if (!json.is_object()) refuse("a query is a JSON object, as in {\"model\": \"gpt2\"}");
  Query query;
  for (const auto& [key, value] : json.items()) add_member(query, key, value);
  return query;
}

}  // namespace plimsoll::tools
