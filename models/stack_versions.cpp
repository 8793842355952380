#include "models/stack_versions.h"

#include <charconv>

namespace plimsoll::models {

std::optional<Release> release_from(std::string_view text) {
  Release release;
  int* const parts[] = {&release.major, &release.minor, &release.patch};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int i = 0; i < 3; ++i) {
    const auto [next, error] = std::from_chars(at, end, *parts[i]);
    if (error != std::errc() || *parts[i] < 0 || *at == '-') return std::nullopt;
    if (next == end) return i > 0 ? std::optional(release) : std::nullopt;
    if (*next != '.') return std::nullopt;
    at = next + 1;
  }
  return std::nullopt;
}

std::string text_of(const Release& release) {
  return std::to_string(release.major) + "." + std::to_string(release.minor) + "." +
         std::to_string(release.patch);
}

}  // namespace plimsoll::models
