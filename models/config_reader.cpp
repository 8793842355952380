#include "models/config_reader.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "models/base/utf8.h"

namespace plimsoll::models {

namespace {
using nlohmann::json;

std::string text_of(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  return shortened(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

std::string name_of(const Key& key) {
  return std::string(key.names().front());
}

}  // namespace

Config::Config(std::shared_ptr<const Json> root, const Json* node, std::string source)
    : root_(std::move(root)),
      node_(node),
      read_(std::make_shared<std::set<std::string, std::less<>>>()),
      missed_(std::make_shared<std::set<std::string, std::less<>>>()),
      probabilities_(std::make_shared<std::set<std::string, std::less<>>>()),
      source_(std::move(source)) {}

Config Config::parse(std::string_view text, std::string source) {
  json value = parse_json(text, source);
  check(value.is_object(), ErrorKind::bad_input, [&] {
    return fmt::format("{}: {} where a JSON object ({{...}}) is needed", source, text_of(value));
  });
  auto root = std::make_shared<const json>(std::move(value));
  const json* node = root.get();
  return Config(std::move(root), node, std::move(source));
}

const nlohmann::json* Config::find(const Key& key) const {
  const json& object = *node_;
  for (const std::string_view name : key.names()) {
    const auto it = object.find(std::string(name));
    if (it == object.end()) continue;
    read_->emplace(name);
    return &*it;
  }
  return nullptr;
}

const nlohmann::json* Config::find_value(const Key& key) const {
  const Json* node = find(key);
  return node != nullptr && !node->is_null() ? node : nullptr;
}

bool Config::has(const Key& key) const {
  return find_value(key) != nullptr;
}

bool Config::mentions(const Key& key) const {
  return find(key) != nullptr;
}

bool Config::is_list(const Key& key) const {
  const Json* node = find(key);
  return node != nullptr && node->is_array();
}

bool Config::is_text(const Key& key, std::string_view text) const {
  const Json* node = find(key);
  return node != nullptr && node->is_string() && node->get_ref<const std::string&>() == text;
}

bool Config::is_set(const Key& key) const {
  const Json* node = find(key);
  if (node == nullptr || node->is_null()) return false;
  if (node->is_boolean()) return node->get<bool>();
  if (node->is_number()) return node->get<double>() != 0;
  if (node->is_string()) return !node->get_ref<const std::string&>().empty();
  return !node->empty();
}

bool Config::is_string(const Key& key) const {
  const Json* node = find(key);
  return node != nullptr && node->is_string();
}

bool Config::is_object(const Key& key) const {
  const Json* node = find(key);
  return node != nullptr && node->is_object();
}

bool Config::is_flag(const Key& key) const {
  const Json* node = find(key);
  return node != nullptr && node->is_boolean();
}

std::string Config::shown(const Key& key) const {
  const Json* node = find(key);
  return node == nullptr ? "missing" : text_of(*node);
}

bool Config::was_read(std::string_view name) const {
  return read_->contains(name);
}

bool Config::was_missed(std::string_view name) const {
  return missed_->contains(name);
}

std::string_view Config::named(const Key& key) const {
  for (const std::string_view name : key.names())
    if (node_->contains(std::string(name))) return name;
  return key.names().front();
}

void Config::refuse(const Key& key, std::string_view needed) const {
  const Json* node = find(key);
  fail(ErrorKind::bad_input, fmt::format("{}: {} is {}, but {} is needed", source_, named(key),
                                         node == nullptr ? "missing" : text_of(*node), needed));
}

std::int64_t Config::whole(const Key& key, const Json& value, std::int64_t least) const {
  const std::string needed = least > 0 ? "a positive whole number" : "a whole number from 0 up";
  constexpr double limit = 9223372036854775808.0;  // 2^63
  const bool too_big = (value.is_number_unsigned() &&
                        value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) ||
                       (value.is_number_float() && value.get<double>() >= limit);
  if (too_big) refuse(key, needed + " below 2^63 (this one overflows)");
  if (!value.is_number_integer()) refuse(key, needed);
  const auto number = value.get<std::int64_t>();
  if (number < least) refuse(key, needed);
  return number;
}

std::int64_t Config::count(const Key& key, std::int64_t fallback) const {
  const Json* node = find(key);
  if (node != nullptr) return whole(key, *node, 1);
  for (const std::string_view name : key.names()) missed_->emplace(name);
  return fallback;
}

std::int64_t Config::optional_count(const Key& key, std::int64_t fallback) const {
  const Json* node = find_value(key);
  return node == nullptr ? fallback : whole(key, *node, 1);
}

std::int64_t Config::natural(const Key& key, std::int64_t fallback) const {
  const Json* node = find(key);
  if (node == nullptr) return fallback;
  return node->is_null() ? 0 : whole(key, *node, 0);
}

std::int64_t Config::repeats(const Key& key, std::int64_t fallback) const {
  const std::int64_t number = count(key, fallback);
  if (number > kMostRepeats) refuse(key, fmt::format("a whole number up to {}", kMostRepeats));
  return number;
}

double Config::real(const Key& key, double fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number() || !std::isfinite(value->get<double>())) refuse(key, "a number");
  return value->get<double>();
}

double Config::probability(const Key& key, double fallback) const {
  const Json* node = find(key);
  probabilities_->emplace(named(key));
  if (node == nullptr) return fallback;
  const json& value = *node;
  if (value.is_null()) return 0;
  if (!value.is_number() || value.get<double>() < 0 || value.get<double>() > 1)
    refuse(key, "a probability from 0 to 1");
  return value.get<double>();
}

bool Config::flag(const Key& key, bool fallback) const {
  const Json* node = find(key);
  if (node == nullptr) return fallback;
  if (node->is_null()) return false;
  if (!node->is_boolean()) refuse(key, "true or false");
  return node->get<bool>();
}

std::string Config::text(const Key& key, std::string_view fallback) const {
  const Json* node = find_value(key);
  if (node == nullptr) return std::string(fallback);
  if (!node->is_string()) refuse(key, "a string");
  return node->get<std::string>();
}

std::vector<std::string> Config::texts(const Key& key, std::int64_t most) const {
  const Json* node = find_value(key);
  std::vector<std::string> out;
  if (node == nullptr) return out;
  if (!node->is_array() || std::cmp_greater(node->size(), most))
    refuse(key, fmt::format("a list of at most {} strings", most));
  for (const json& item : *node) {
    if (!item.is_string()) refuse(key, "a list of strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

std::vector<std::int64_t> Config::naturals(const Key& key, std::int64_t most) const {
  const Json* node = find_value(key);
  std::vector<std::int64_t> out;
  if (node == nullptr) return out;
  if (!node->is_array() || std::cmp_greater(node->size(), most))
    refuse(key, fmt::format("a list of at most {} whole numbers", most));
  for (const json& item : *node) out.push_back(whole(key, item, 0));
  return out;
}

std::optional<Config> Config::section(const Key& key) const {
  const Json* node = find_value(key);
  if (node == nullptr) return std::nullopt;
  if (!node->is_object()) refuse(key, "an object");
  return Config(root_, node, fmt::format("{}: {}", source_, name_of(key)));
}

std::vector<Config> Config::sections(const Key& key) const {
  const Json* node = find_value(key);
  std::vector<Config> out;
  if (node == nullptr) return out;
  if (!node->is_array()) refuse(key, "a list of objects");
  for (const json& item : *node) {
    if (!item.is_object()) refuse(key, "a list of objects");
    out.push_back(Config(root_, &item, fmt::format("{}: {}", source_, name_of(key))));
  }
  return out;
}

std::int64_t Config::entries(const Key& key) const {
  const Json* node = find_value(key);
  if (node == nullptr) return 0;
  if (!node->is_structured()) refuse(key, "a list or an object");
  return static_cast<std::int64_t>(node->size());
}

std::vector<std::string> Config::keys() const {
  std::vector<std::string> out;
  for (const auto& [key, value] : node_->items()) out.push_back(key);
  return out;
}

std::string Config::dump() const {
  return node_->dump(-1, ' ', false, json::error_handler_t::replace);
}

void Config::check_divides(const Key& part_key, std::int64_t part, const Key& whole_key,
                           std::int64_t whole) const {
  check(part > 0 && whole % part == 0, ErrorKind::bad_input, [&] {
    return fmt::format("{}: {} {} is not a multiple of {} {}", source_, name_of(whole_key), whole,
                       name_of(part_key), part);
  });
}

}  // namespace plimsoll::models
