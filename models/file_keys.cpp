#include "models/file_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/base/nearest.h"
#include "models/base/utf8.h"

namespace plimsoll::models {

namespace {
bool is_in(std::span<const std::string_view> keys, std::string_view key) {
  return std::ranges::find(keys, key) != keys.end();
}
}  // namespace

void refuse_key(const Config& file, std::string_view key, std::string_view why) {
  fail(ErrorKind::unsupported,
       fmt::format("{}: {} is {}: {}", file.source(), key, file.shown(key), why));
}

void refuse_unmodelled_keys(const Config& file, const KeyTable& table) {
  for (const std::string_view key : table.unmodelled)
    if (file.is_set(key)) refuse_key(file, key, "is not modelled yet");
}

std::vector<std::string> unknown_keys(const Config& file, const KeyTable& table) {
  std::vector<std::string> out;
  for (const std::string& key : file.keys())
    if (!is_in(table.read, key) && !is_in(table.unmodelled, key) && !is_in(table.no_memory, key))
      out.push_back(key);
  return out;
}

std::string nearest_key(const std::string& key, const KeyTable& table) {
  return nearest(key, table.read);
}

void refuse_unknown_key(const Config& file, const std::string& key, const KeyTable& table) {
  const std::string near = nearest_key(key, table);
  fail(ErrorKind::bad_input,
       fmt::format("{}: unknown key '{}'{}", file.source(), shortened(key),
                   near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
}

std::vector<std::string> present(const Config& file, std::span<const std::string_view> keys) {
  std::vector<std::string> out;
  for (const std::string& key : file.keys())
    if (is_in(keys, key)) out.push_back(key);
  return out;
}

std::string listed(const std::vector<std::string>& names) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += i + 1 < names.size() ? ", " : " and ";
    out += shortened(names[i]);
  }
  return out;
}

}  // namespace plimsoll::models
