// A plan's time, from the same model that the search asks.
#pragma once

#include "models/step_flops.h"
#include "planner/model_parts.h"
#include "planner/plan.h"
#include "reports/record.h"

namespace plimsoll::planner {

// Fills plan.time (HFU by plan.hardware_flops_per_step) and names the constants behind it in
// plan.assumptions. Where the GPU is not known, has no units for the precision, or the device is
// the host, all stay empty.
void add_time(const Question& question, const ModelParts& parts, const models::StepFlops& flops,
              reports::Plan& plan);

}  // namespace plimsoll::planner
