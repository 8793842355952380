#include "reports/record.h"

namespace plimsoll::reports {

Bytes sum(const ByCategory& parts) {
  Bytes total;
  for (const Bytes part : parts) total += part;
  return total;
}

}  // namespace plimsoll::reports
