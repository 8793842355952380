#include "tools/cli/query_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "models/base/error.h"
#include "models/base/nearest.h"
#include "models/base/utf8.h"
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

void add_member(Query& query, const std::string& key, const Json& value,
                std::span<const Option> own) {
  if (value.is_null()) return;
  if (key == "model") {
    if (!value.is_string()) refuse("\"model\": must be a string");
    query.model = value.get<std::string>();
    return;
  }
  std::string name = key;
  std::ranges::replace(name, '_', '-');
  const Option* known = find_plan_option(name);
  const auto of_command = std::ranges::find(own, name, &Option::name);
  if (known == nullptr && of_command != own.end()) known = &*of_command;
  if (known == nullptr) {
    std::vector<std::string_view> names{"model"};
    for (const auto& options : {plan_options(), own})
      for (const Option& option : options) names.push_back(option.name);
    const std::string near = nearest(name, names);
    refuse(fmt::format("unknown key \"{}\"{}", shortened(key),
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

// The JSON library keeps the last of two equal keys, and takes a NUL for the end of the text.
Json parsed(std::string_view line, std::vector<std::string>& keys) {
  if (line.find('\0') != std::string_view::npos) refuse("not JSON: a NUL byte");
  const auto note_key = [&](int depth, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::key && depth == 1) keys.push_back(value.get<std::string>());
    return true;
  };
  Json json = Json::parse(line, note_key, false);
  if (json.is_discarded()) refuse("not JSON");
  if (!json.is_object()) refuse("a query is a JSON object, as in {\"model\": \"gpt2\"}");
  return json;
}

void check_once(std::vector<std::string> keys) {
  for (std::string& key : keys) std::ranges::replace(key, '_', '-');
  std::ranges::sort(keys);
  const auto twice = std::ranges::adjacent_find(keys);
  if (twice != keys.end()) refuse(fmt::format("\"{}\": is there twice", shortened(*twice)));
}
}  // namespace

Query query_from(std::string_view line, std::string& id, std::span<const Option> own) {
  std::vector<std::string> keys;
  const Json json = parsed(line, keys);
  if (const auto member = json.find("id"); member != json.end() && !member->is_null()) {
    if (!member->is_string() && !member->is_number())
      refuse("\"id\": must be a string or a number");
    id = member->dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  check_once(std::move(keys));
  Query query;
  for (const auto& [key, value] : json.items())
    if (key != "id") add_member(query, key, value, own);
  return query;
}

}  // namespace plimsoll::tools
