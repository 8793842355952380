// What copies of activations to the host and back add to a step.
#pragma once

#include "models/cluster_spec.h"
#include "models/run_spec.h"
#include "planner/model_parts.h"
#include "planner/time/gpu_rates.h"

namespace plimsoll::planner {

// Of a bus, what copies of pinned memory reach.
Share pinned_copy_share();

struct OffloadTime {
  double bytes = 0;  // copied out in a step, and as many back
  double seconds = 0;  // of both, hidden or not
  double exposed = 0;  // of these, while nothing is computed
};

// Of --offload activations with every layer a checkpoint, beside `compute` seconds of a step's
// forward, recomputation and backward.
OffloadTime offload_time(const models::Gpu& gpu, const ModelParts& parts,
                         const models::Strategy& strategy, const models::Batch& batch,
                         double compute);

}  // namespace plimsoll::planner
