// The JSON files of models/specs, compiled in as text (embed.py). Nothing is parsed at start-up.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace plimsoll::models::specs {

struct Document {
  std::string_view name;  // of a file: without ".json"
  std::string_view json;
};

// A name that an entry is found by: its own, or an alias; lower case.
struct EntryKey {
  std::string_view key;
  std::uint16_t index;  // into entries
};

struct Catalog {
  std::span<const Document> entries;  // in the order of the file, models by name
  std::span<const EntryKey> keys;  // sorted

  // By name or alias, in any case; nullptr: not there.
  const Document* find(std::string_view name) const;
  // For "did you mean": the name of the entry of which `name` is the beginning ("llama3"), or which
  // begins `name` ("llama-3.1-8b-GGUF"), or the nearest by letters; "" where nothing is near.
  std::string nearest(std::string_view name) const;
};

const Catalog& models();  // models/*.json
const Catalog& gpus();  // the records of gpus.json, with the texts of their sources

// The text of another file: "overheads"; Error{internal} where the build left it out.
std::string_view document(std::string_view name);

}  // namespace plimsoll::models::specs
