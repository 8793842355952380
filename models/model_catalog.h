// The models that plimsoll knows by name. Parses only the entry that is asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_spec.h"

namespace plimsoll::models {

struct CatalogEntry {
  std::string name;  // "llama-3.1-8b"
  std::vector<std::string> aliases;  // hub ids and short names
  std::string source;  // where the configuration comes from
  std::optional<std::int64_t> parameters;  // as published, where an exact figure is
  std::string config;  // the config.json's text
};

std::vector<std::string_view> catalog_names();  // sorted

// By name or alias, in any case; nothing where no model is called so.
std::optional<CatalogEntry> find_catalog_entry(std::string_view name);

// The model of that entry. Error{bad_input} with the nearest name where there is none.
ModelSpec catalog_model(std::string_view name);

// Name or alias nearest to `name`; "" where none is near.
std::string nearest_model(std::string_view name);

}  // namespace plimsoll::models
