// Which kernel torch's scaled_dot_product_attention runs, as far as the card decides.
#pragma once

#include <string>
#include <vector>

#include "models/gpu_catalog.h"
#include "models/overheads.h"
#include "planner/stacks/pytorch/rules.h"
#include "reports/record.h"

namespace plimsoll::planner {
struct Question;
}

namespace plimsoll::planner::pytorch {

Rules::Sdpa sdpa_of(const models::Gpu& gpu, const std::vector<models::Overhead>& overheads);

// Said in the plan; `torch`: "torch 2.11". The question names a GPU.
reports::Assumption kernel_of_sdpa(const Rules& rules, std::int64_t head_dim,
                                   const Question& question, const std::string& torch);
reports::Assumption kernel_of_flex(const std::string& torch);
reports::Assumption kernel_of_xformers();

}  // namespace plimsoll::planner::pytorch
