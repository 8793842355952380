#include "reports/record.h"

#include <algorithm>

namespace plimsoll::reports {

Bytes sum(const ByCategory& parts) {
  Bytes total;
  for (const Bytes part : parts) total += part;
  return total;
}

bool RankKind::has(std::int64_t which) const {
  if (spans.empty()) return which >= rank && which < rank + count;
  return std::ranges::any_of(
      spans, [&](const RankSpan& span) { return which >= span.first && which <= span.last; });
}

}  // namespace plimsoll::reports
