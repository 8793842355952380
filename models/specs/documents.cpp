#include "models/specs/documents.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "models/base/error.h"
#include "models/base/nearest.h"
#include "models/specs/embedded.h"

namespace plimsoll::models::specs {

const Document* Catalog::find(std::string_view name) const {
  std::string key(name);
  for (char& c : key) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto it = std::ranges::lower_bound(keys, std::string_view(key), {}, &EntryKey::key);
  return it != keys.end() && it->key == key ? &entries[it->index] : nullptr;
}

std::string Catalog::nearest(std::string_view name) const {
  std::vector<std::string_view> names;
  for (const EntryKey& key : keys) names.push_back(key.key);
  return plimsoll::nearest(name, names);
}

std::string_view document(std::string_view name) {
  for (const Document& d : other_documents())
    if (d.name == name) return d.json;
  fail(ErrorKind::internal, "models/specs/" + std::string(name) + ".json is not in this binary");
}

}  // namespace plimsoll::models::specs
