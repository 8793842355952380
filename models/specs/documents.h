// The JSON files of models/specs, compiled in as text (embed.py). Nothing is parsed at start-up.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace plimsoll::models::specs {

struct Document {
  std::string_view name;  // file name without ".json"
  std::string_view json;
};

// A name that a model is found by: its own, or an alias; lower case.
struct ModelKey {
  std::string_view key;
  std::uint16_t index;  // into model_documents()
};

std::span<const Document> model_documents();  // models/*.json, sorted by name
std::span<const ModelKey> model_keys();  // sorted by key

// "gpus", "overheads", …; Error{internal} where the build left it out.
std::string_view document(std::string_view name);

}  // namespace plimsoll::models::specs
