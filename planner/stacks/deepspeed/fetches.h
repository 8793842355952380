// ZeRO-3's all-gathers of parameters in one micro-batch, by the coordinator's own rules.
#pragma once

#include "planner/program/messages.h"
#include "planner/stacks/deepspeed/layout.h"

namespace plimsoll::planner::deepspeed {

void add_fetches(const ModelParts& parts, const FlatLayout& layout, const Engine& engine,
                 const models::Strategy& strategy, Messages& out);

// Throws Error{bad_input} where parameters that are read from files find no buffer.
void refuse_few_buffers(const ModelParts& parts, const FlatLayout& layout, const Engine& engine,
                        const models::Strategy& strategy);

}  // namespace plimsoll::planner::deepspeed
