// What happens to memory in one step of one rank, op by op and tensor by tensor: as a plan claims
// it, or as a runtime's ledger has seen it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/base/quantity.h"

namespace plimsoll::reports {

struct OpBoundary {
  std::string op, phase;
  Bytes allocated;  // requested bytes that live when the op is done
  Bytes high_water;  // and the most while it ran
  bool operator==(const OpBoundary&) const = default;
};

struct TensorSpan {
  std::string name, category;
  Bytes bytes;
  // Indices of ops: -1 before the step, the number of ops after it.
  std::int64_t born = -1, died = -1;
  bool operator==(const TensorSpan&) const = default;
};

struct StepLedger {
  std::vector<OpBoundary> ops;
  std::vector<TensorSpan> tensors;
  bool operator==(const StepLedger&) const = default;
};

}  // namespace plimsoll::reports
