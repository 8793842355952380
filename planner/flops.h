// Floating point operations of one optimizer step, by the project's convention.
//
// Per token: 6 for every weight in a matrix product (2 forward, 2 for the input's gradient, 2 for
// its own; the input embedding does not count, the head does, also when tied), 4 where it is
// frozen, plus attention 3·L·a·(d_qk + d_v)·s_eff, the causal half counted once (s_eff = s, or the
// window). Chowdhery et al., PaLM, arXiv 2204.02311, appendix B, with causality.
#pragma once

#include "models/model_spec.h"
#include "models/run_spec.h"
#include "planner/model_parts.h"

namespace plimsoll::planner {

struct StepFlops {
  double model = 0;  // the whole job's, one optimizer step
  double hardware = 0;  // with recomputation
  double attention = 0;  // of `model`, the causal scores' part
};

StepFlops step_flops(const ModelParts& parts, const models::Strategy& strategy,
                     const models::Batch& batch);

}  // namespace plimsoll::planner
