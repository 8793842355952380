// "Did you mean": the nearest of a list of names.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace plimsoll {

// The candidate with the smallest edit distance to `name` (case-insensitive; insertions, deletions,
// substitutions and swaps of neighbours cost 1), or "" where even the nearest shares too little
// (distance > max(2, a third of the longer name)).
std::string nearest(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace plimsoll
