// Whether there is room for a plan, as data: part of its record (reports/record.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "models/base/quantity.h"

namespace plimsoll::reports {

enum class Verdict { fits, borderline, does_not_fit };

struct Range {
  Bytes low, high;
  std::string why;
};

// What the device would have to hold if all that is assumed came out at its high end. It stands in
// where no measurement gives a range yet.
struct HighEnd {
  Bytes reserved, overhead;
  std::int64_t reserved_more = 0;  // thousandths of the planned reserved bytes that it adds
  bool fits = false;
  Bytes device() const { return reserved + overhead; }
};

// In less room than is needed: the allocator gives cached segments back and asks for others.
struct Flushing {
  Bytes reserved, malloced;
  std::int64_t flushes = 0, frees = 0, mallocs = 0;  // of one step, as `malloced` and `seconds`
  std::optional<double> seconds;
};

}  // namespace plimsoll::reports
