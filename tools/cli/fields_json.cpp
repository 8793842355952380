#include "tools/cli/fields_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/base/error.h"
#include "models/base/nearest.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace {
using Json = nlohmann::ordered_json;

bool is_index(std::string_view name) {
  return !name.empty() && name.size() < 8 &&
         std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
}

// The part of `path` before its first dot, which `path` loses with the dot.
std::string_view take_name(std::string_view& path) {
  const std::size_t dot = path.find('.');
  const std::string_view name = path.substr(0, dot);
  path = dot == std::string_view::npos ? "" : path.substr(dot + 1);
  return name;
}

// The parts of a JSON Schema that reports/schema/plan.schema.json is made of: properties, items,
// anyOf and references to its definitions.
class Schema {
 public:
  explicit Schema(std::string_view text) : root_(Json::parse(text)) {}

  bool has(std::string_view path) const { return has(root_, path); }

  // Every path down to `depth` names; what stands in lists is left out.
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    collect(root_, "", out);
    return out;
  }

 private:
  const Json& resolved(const Json& node) const {
    const auto reference = node.find("$ref");
    if (reference == node.end()) return node;
    const auto path = reference->get<std::string>();  // "#/definitions/states"
    return root_.at("definitions").at(path.substr(path.rfind('/') + 1));
  }

  bool has(const Json& unresolved, std::string_view path) const {
    const Json& node = resolved(unresolved);
    if (path.empty()) return true;
    if (const auto any = node.find("anyOf"); any != node.end())
      return std::ranges::any_of(*any, [&](const Json& one) { return has(one, path); });
    std::string_view rest = path;
    const std::string name(take_name(rest));
    if (rest.empty() && path.ends_with('.')) return false;
    if (const auto items = node.find("items"); items != node.end())
      return is_index(name) && has(*items, rest);
    const auto properties = node.find("properties");
    if (properties == node.end()) return node.value("type", Json()) == "object";  // of any shape
    const auto property = properties->find(name);
    return property != properties->end() && has(*property, rest);
  }

  void collect(const Json& unresolved, const std::string& prefix,
               std::vector<std::string>& out) const {
    const Json& node = resolved(unresolved);
    if (const auto any = node.find("anyOf"); any != node.end())
      for (const Json& one : *any) collect(one, prefix, out);
    const auto properties = node.find("properties");
    if (properties == node.end()) return;
    for (const auto& [name, property] : properties->items()) {
      out.push_back(prefix + name);
      collect(property, out.back() + ".", out);
    }
  }

  Json root_;
};

void check_path(const Schema& schema, const std::string& path) {
  if (schema.has(path)) return;
  const std::vector<std::string> names = schema.names();
  // Whoever leaves out where a field stands means the field.
  for (const std::string& name : names)
    if (name.ends_with("." + path))
      refuse_value("fields", path, fmt::format("no field of a plan; did you mean '{}'?", name));
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string near = nearest(path, views);
  refuse_value("fields", path,
               "no field of a plan" +
                   (near.empty() ? " (dotted paths into plimsoll.plan/1, as in time.step_seconds)"
                                 : fmt::format("; did you mean '{}'?", near)));
}

const Json* find(const Json& document, std::string_view path) {
  const Json* node = &document;
  while (!path.empty()) {
    const std::string name(take_name(path));
    if (node->is_array()) {
      const std::size_t index = is_index(name) ? std::stoul(name) : node->size();
      if (index >= node->size()) return nullptr;
      node = &(*node)[index];
    } else {
      const auto member = node->is_object() ? node->find(name) : node->end();
      if (!node->is_object() || member == node->end()) return nullptr;
      node = &*member;
    }
  }
  return node;
}
}  // namespace

Fields::Fields(std::string_view list) : paths_(comma_list("fields", list)) {
  const Schema schema(plan_schema());
  for (const std::string& path : paths_) {
    check_path(schema, path);
    if (std::ranges::count(paths_, path) > 1) refuse_value("fields", path, "is given twice");
  }
}

std::vector<std::string> Fields::values(std::string_view plan) const {
  const Json document = Json::parse(plan);
  std::vector<std::string> out;
  for (const std::string& path : paths_) {
    const Json* value = find(document, path);
    out.push_back(value == nullptr ? "null" : value->dump());
  }
  return out;
}

std::string csv_line(const std::vector<std::string>& cells) {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) line += ',';
    if (cells[i].find_first_of(",\"\r\n") == std::string::npos) {
      line += cells[i];
      continue;
    }
    line += '"';
    for (const char c : cells[i]) line += c == '"' ? std::string("\"\"") : std::string(1, c);
    line += '"';
  }
  return line + "\r\n";
}

std::string csv_cell(std::string_view json) {
  if (json == "null") return "";
  return json.starts_with('"') ? Json::parse(json).get<std::string>() : std::string(json);
}

}  // namespace plimsoll::tools
