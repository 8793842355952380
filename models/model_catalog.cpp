#include "models/model_catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "models/base/nearest.h"
#include "models/config_reader.h"
#include "models/model_reader.h"
#include "models/specs/documents.h"

namespace plimsoll::models {

namespace {
std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}
}  // namespace

std::vector<std::string_view> catalog_names() {
  std::vector<std::string_view> names;
  for (const specs::Document& document : specs::model_documents()) names.push_back(document.name);
  return names;
}

std::optional<CatalogEntry> find_catalog_entry(std::string_view name) {
  const std::string key = lower_case(name);
  const auto keys = specs::model_keys();
  const auto it = std::ranges::lower_bound(keys, std::string_view(key), {}, &specs::ModelKey::key);
  if (it == keys.end() || it->key != key) return std::nullopt;
  const specs::Document& document = specs::model_documents()[it->index];
  const Config json = Config::parse(document.json, std::string(document.name));
  CatalogEntry entry;
  entry.name = document.name;
  entry.aliases = json.texts("aliases", 64);
  entry.source = json.text("source", "");
  if (json.has("parameters")) entry.parameters = json.count("parameters", 0);
  entry.config = json.section("config").value().dump();
  return entry;
}

ModelSpec catalog_model(std::string_view name) {
  const std::optional<CatalogEntry> entry = find_catalog_entry(name);
  if (!entry) {
    const std::string near = nearest_model(name);
    fail(ErrorKind::bad_input,
         fmt::format("model '{}' is not in the catalog{}", name.substr(0, 100),
                     near.empty() ? " (plimsoll models lists it)"
                                  : fmt::format("; did you mean '{}'?", near)));
  }
  return read_model(entry->config, entry->name, "catalog entry " + entry->name);
}

std::string nearest_model(std::string_view name) {
  std::vector<std::string_view> keys;
  for (const specs::ModelKey& key : specs::model_keys()) keys.push_back(key.key);
  return nearest(name, keys);
}

}  // namespace plimsoll::models
