// Two ledgers of one step, joined op by op and tensor by tensor.
#pragma once

#include "reports/comparison.h"

namespace plimsoll::reports {

// Every difference, unordered. Ops are joined by their place; where another op stands there, what
// follows has no partner, and only tensors are looked at further. Tensors are joined by name, those
// of one name in the order of their births.
std::vector<Difference> join(std::int64_t rank, const StepLedger& predicted,
                             const StepLedger& measured);

// Every name of either, with the sums of its tensors.
std::vector<TensorRow> tensor_rows(const StepLedger& predicted, const StepLedger& measured);

}  // namespace plimsoll::reports
