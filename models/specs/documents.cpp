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

namespace {
bool is_alphanumeric(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0;
}

// The letters and digits that `a` and `b` have in common at their beginnings, whatever stands
// between them; 0 where neither is the beginning of the other, or a word of the longer one is cut.
std::size_t common_beginning(std::string_view a, std::string_view b) {
  std::size_t i = 0, j = 0, common = 0;
  for (;; ++i, ++j, ++common) {
    while (i < a.size() && !is_alphanumeric(a[i])) ++i;
    while (j < b.size() && !is_alphanumeric(b[j])) ++j;
    if (i == a.size() || j == b.size()) break;
    if (std::tolower(static_cast<unsigned char>(a[i])) !=
        std::tolower(static_cast<unsigned char>(b[j])))
      return 0;
  }
  const bool a_cut = i < a.size() && i > 0 && is_alphanumeric(a[i - 1]);
  const bool b_cut = j < b.size() && j > 0 && is_alphanumeric(b[j - 1]);
  return a_cut || b_cut ? 0 : common;
}
}  // namespace

std::string Catalog::nearest(std::string_view name) const {
  constexpr std::size_t kLeastInCommon = 3;
  const std::string_view bare = name.substr(name.find('/') + 1).substr(0, 256);
  const EntryKey* best = nullptr;
  std::size_t most = kLeastInCommon - 1;
  for (const EntryKey& key : keys) {
    const std::size_t common = common_beginning(bare, key.key);
    const bool better =
        common > most || (best != nullptr && common == most && key.key.size() < best->key.size());
    if (!better) continue;
    most = common;
    best = &key;
  }
  if (best != nullptr) return std::string(entries[best->index].name);
  std::vector<std::string_view> names;
  for (const EntryKey& key : keys) names.push_back(key.key);
  const std::string near = plimsoll::nearest(name, names);
  return near.find('/') == std::string::npos ? near : std::string(find(near)->name);
}

std::string_view document(std::string_view name) {
  for (const Document& d : other_documents())
    if (d.name == name) return d.json;
  fail(ErrorKind::internal, "models/specs/" + std::string(name) + ".json is not in this binary");
}

}  // namespace plimsoll::models::specs
