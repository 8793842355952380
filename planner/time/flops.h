// What a step's parts multiply, counted for models/step_flops.h.
#pragma once

#include "models/step_flops.h"
#include "planner/model_parts.h"

namespace plimsoll::planner {

models::GemmsOfToken gemms_of_token(const ModelParts& parts,
                                    const models::Recompute& recompute = {});

models::StepFlops step_flops(const ModelParts& parts, const models::Strategy& strategy,
                             const models::Batch& batch);

}  // namespace plimsoll::planner
