#include "models/model_catalog.h"

#include <fmt/format.h>

#include "models/base/utf8.h"
#include "models/config_reader.h"
#include "models/model_reader.h"
#include "models/specs/documents.h"

namespace plimsoll::models {

std::vector<std::string_view> catalog_names() {
  std::vector<std::string_view> names;
  for (const specs::Document& document : specs::models().entries) names.push_back(document.name);
  return names;
}

std::optional<CatalogEntry> find_catalog_entry(std::string_view name) {
  const specs::Document* document = specs::models().find(name);
  if (document == nullptr) return std::nullopt;
  const Config json = Config::parse(document->json, std::string(document->name));
  CatalogEntry entry;
  entry.name = document->name;
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
         fmt::format("model '{}' is not in the catalog{}", shortened(name, 100),
                     near.empty() ? " (plimsoll models lists it)"
                                  : fmt::format("; did you mean '{}'?", near)));
  }
  return read_model(entry->config, entry->name, "catalog entry " + entry->name);
}

std::string nearest_model(std::string_view name) {
  return specs::models().nearest(name);
}

}  // namespace plimsoll::models
