// Which kernel torch's scaled_dot_product_attention runs, as far as the card decides.
#pragma once

#include <string>
#include <vector>

#include "models/gpu_catalog.h"
#include "models/overheads.h"
#include "planner/stacks/pytorch/rules.h"
#include "reports/record.h"

namespace plimsoll::planner::pytorch {

Rules::Sdpa sdpa_of(const models::Gpu& gpu, const std::vector<models::Overhead>& overheads);

// Said in the plan; `torch`: "torch 2.11".
reports::Assumption kernel_of_sdpa(Rules::Sdpa sdpa, const models::Strategy& s,
                                   const std::string& torch, const std::string& capability);

}  // namespace plimsoll::planner::pytorch
