// What a strategy has beside its sharding, precision, optimizer and batch.
#pragma once

#include <string>
#include <vector>

#include "models/run_spec.h"

namespace plimsoll::reports {

// A line each, nothing of what is usual: "liger kernels", "LoRA rank 16, adapters in fp32, base
// packed in nf4-dq".
std::vector<std::string> strategy_lines(const models::Strategy& strategy);

}  // namespace plimsoll::reports
