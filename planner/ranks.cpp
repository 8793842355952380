#include "planner/ranks.h"

#include <algorithm>
#include <map>

namespace plimsoll::planner {

std::int64_t EqualRanks::count() const {
  std::int64_t ranks = 0;
  for (const reports::RankSpan& span : spans) ranks += span.last - span.first + 1;
  return ranks;
}

bool EqualRanks::has(std::int64_t rank) const {
  return std::ranges::any_of(spans, [&](const reports::RankSpan& span) {
    return rank >= span.first && rank <= span.last;
  });
}

std::vector<EqualRanks> equal_ranks(
    std::int64_t world, std::int64_t group,
    const std::function<std::vector<std::int64_t>(std::int64_t rank)>& held) {
  std::map<std::vector<std::int64_t>, std::size_t> kinds;
  std::vector<std::size_t> kind_of;  // each rank of a group
  for (std::int64_t rank = 0; rank < group; ++rank)
    kind_of.push_back(kinds.try_emplace(held(rank), kinds.size()).first->second);
  std::vector<EqualRanks> out(kinds.size());
  for (std::int64_t rank = 0; rank < world; ++rank) {
    auto& spans = out[kind_of[static_cast<std::size_t>(rank % group)]].spans;
    if (!spans.empty() && spans.back().last + 1 == rank)
      spans.back().last = rank;
    else
      spans.push_back({rank, rank});
  }
  return out;
}

}  // namespace plimsoll::planner
