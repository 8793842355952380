// How long one optimizer step takes, and what limits it.
//
// Built once for a model on a cluster, then asked for any number of strategies: plain data in and
// out, no allocation per question. `fit` and the search ask the same object.
#pragma once

#include <cstdint>
#include <vector>

#include "models/cluster_spec.h"
#include "models/run_spec.h"
#include "planner/collective_cost.h"
#include "planner/compute_cost.h"
#include "planner/model_parts.h"

namespace plimsoll::planner {

// What most of the step waits for.
enum class Limit : std::uint8_t { compute, memory_bandwidth, launches, intra_node, inter_node };
const char* name_of(Limit limit);

// Seconds of one optimizer step, all micro-batches.
// step = compute + exposed_communication + pipeline_bubble + optimizer.
struct StepTime {
  double step = 0;
  double compute = 0;  // forward, backward and recomputation
  double exposed_communication = 0;  // while nothing is computed
  double pipeline_bubble = 0;
  double optimizer = 0;
  double communication = 0;  // all of it, hidden or not
  Limit limit = Limit::compute;
};

class TimeModel {
 public:
  // `parts` as model_parts(model, strategy) makes them: one TimeModel serves all strategies that
  // train the same parameters. Strategies are those that the stacks accept (tp = pp = cp = ep = 1).
  TimeModel(const ModelParts& parts, const models::ClusterSpec& cluster,
            const Software& software = {});

  // Whether the GPU is known and has a rate for products of this precision. Where not, no time is
  // predicted: the operator must not be asked.
  bool knows(models::Precision precision) const;

  double peak_flops(models::Precision precision) const;  // of one GPU, dense

  StepTime operator()(const models::Strategy& strategy, const models::Batch& batch) const;

 private:
  std::vector<LayerCost> layers_;  // one for each run of equal layers
  EndsCost ends_;
  GpuRates gpu_;
  Fabric fabric_;
  bool reentrant_ = false;
};

}  // namespace plimsoll::planner
