#include "reports/schema_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>

#include "models/base/error.h"
#include "models/base/utf8.h"

namespace plimsoll::reports {

namespace {
using nlohmann::json;

// The path is put together on the way back, so that what is right costs nothing.
struct Complaint {
  std::string path;
  std::string text;
};
using Found = std::optional<Complaint>;

std::string shown(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  return shortened(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

Found wrong(const json& value, const std::string& needed) {
  return Complaint{"", fmt::format("is {}, but {} is needed", shown(value), needed)};
}

Found inside(Found found, const std::string& name) {
  if (found)
    found->path =
        name + (found->path.starts_with('[') || found->path.empty() ? "" : ".") + found->path;
  return found;
}

bool is_small(const json& value) {
  return !value.is_number_unsigned() ||
         value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max();
}

bool is_of_type(const json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "integer") return value.is_number_integer() && is_small(value);
  return type == "number" && value.is_number();
}

std::string words_for(const std::string& type) {
  if (type == "object") return "an object";
  if (type == "array") return "a list";
  if (type == "string") return "a string";
  if (type == "boolean") return "true or false";
  if (type == "integer") return "a whole number below 2^63";
  return type == "number" ? "a number" : type;
}

std::string listed(const json& values) {
  std::string text;
  for (const json& value : values) text += (text.empty() ? "" : ", ") + shown(value);
  return text;
}

class Checker {
 public:
  explicit Checker(const json& root) : root_(root) {}

  Found check(const json& schema, const json& value) const {
    for (const auto& [word, rule] : schema.items()) {
      if (Found found = word_of(schema, word, rule, value)) return found;
    }
    return std::nullopt;
  }

 private:
  // In the order of their names: what is for one type alone passes over values of others.
  Found word_of(const json& schema, const std::string& word, const json& rule,
                const json& value) const {
    constexpr std::array kSilent{"$schema", "title", "description", "definitions"};
    if (word == "type") return type(rule, value);
    if (word == "required") return required(rule, value);
    if (word == "additionalProperties") return members(schema, rule, value);
    if (word == "properties")
      return schema.contains("additionalProperties") ? std::nullopt : members(schema, true, value);
    if (word == "items") return items(rule, value);
    if (word == "minItems" || word == "maxItems") return length(word, rule, value);
    if (word == "minimum" || word == "maximum") return limit(word, rule, value);
    if (word == "const") return value == rule ? std::nullopt : wrong(value, shown(rule));
    if (word == "enum")
      return std::ranges::find(rule, value) != rule.end() ? std::nullopt
                                                          : wrong(value, "one of " + listed(rule));
    if (word == "pattern") return pattern(rule, value);
    if (word == "anyOf") return any_of(rule, value);
    if (word == "$ref") return check(definition(rule), value);
    plimsoll::check(std::ranges::find(kSilent, word) != kSilent.end(), ErrorKind::internal,
                    [&] { return "a schema's word that is not known: " + word; });
    return std::nullopt;
  }

  static Found type(const json& rule, const json& value) {
    if (rule.is_string())
      return is_of_type(value, rule) ? std::nullopt : wrong(value, words_for(rule));
    std::string words;
    for (const json& one : rule) {
      if (is_of_type(value, one)) return std::nullopt;
      words += (words.empty() ? "" : " or ") + words_for(one);
    }
    return wrong(value, words);
  }

  static Found required(const json& rule, const json& value) {
    if (!value.is_object()) return std::nullopt;
    for (const json& key : rule)
      if (!value.contains(key.get_ref<const std::string&>())) return Complaint{key, "is missing"};
    return std::nullopt;
  }

  Found members(const json& schema, const json& other, const json& value) const {
    if (!value.is_object()) return std::nullopt;
    const auto properties = schema.find("properties");
    for (const auto& [key, member] : value.items()) {
      const bool named = properties != schema.end() && properties->contains(key);
      if (!named && other.is_boolean()) {
        if (!other.get<bool>()) return Complaint{shortened(key), "is not known here"};
        continue;
      }
      if (Found found = check(named ? (*properties)[key] : other, member))
        return inside(std::move(found), key);
    }
    return std::nullopt;
  }

  Found items(const json& rule, const json& value) const {
    if (!value.is_array()) return std::nullopt;
    for (std::size_t i = 0; i < value.size(); ++i)
      if (Found found = check(rule, value[i]))
        return inside(std::move(found), fmt::format("[{}]", i));
    return std::nullopt;
  }

  static Found length(const std::string& word, const json& rule, const json& value) {
    const auto most = rule.get<std::size_t>();
    if (!value.is_array() || (word == "minItems" ? value.size() >= most : value.size() <= most))
      return std::nullopt;
    return wrong(value,
                 fmt::format("a list of {} {}", word == "minItems" ? "at least" : "at most", most));
  }

  static Found limit(const std::string& word, const json& rule, const json& value) {
    if (!value.is_number() || (word == "minimum" ? value >= rule : value <= rule))
      return std::nullopt;
    return wrong(value,
                 fmt::format("a number {} {}", word == "minimum" ? "from" : "up to", shown(rule)));
  }

  // std::regex recurses with the text: all that is matched here is short.
  static Found pattern(const json& rule, const json& value) {
    constexpr std::size_t kMost = 64;
    if (!value.is_string()) return std::nullopt;
    const auto& text = value.get_ref<const std::string&>();
    if (text.size() <= kMost && std::regex_search(text, std::regex(rule.get<std::string>())))
      return std::nullopt;
    return wrong(value, "a text like " + rule.get<std::string>());
  }

  // Of several ways the one counts that the value was meant to be: its type and name fit.
  Found any_of(const json& ways, const json& value) const {
    Found nearest;
    for (const json& way : ways) {
      const json& schema = way.contains("$ref") ? definition(way["$ref"]) : way;
      Found found = check(schema, value);
      if (!found) return std::nullopt;
      if (!nearest || was_meant(schema, value)) nearest = std::move(found);
    }
    return nearest;
  }

  bool was_meant(const json& schema, const json& value) const {
    const auto type_rule = schema.find("type");
    if (type_rule != schema.end() && type(*type_rule, value)) return false;
    if (!schema.contains("properties")) return true;
    for (const auto& [key, rule] : schema["properties"].items())
      if (rule.contains("const") && (!value.contains(key) || value[key] != rule["const"]))
        return false;
    return true;
  }

  const json& definition(const std::string& reference) const {
    return root_.at(json::json_pointer(reference.substr(1)));
  }

  const json& root_;
};
}  // namespace

std::string complaint(const json& schema, const json& value) {
  const Found found = Checker(schema).check(schema, value);
  if (!found) return "";
  return (found->path.empty() ? std::string("the document") : found->path) + " " + found->text;
}

}  // namespace plimsoll::reports
