// How long one optimizer step takes, and what limits it.
//
// Built once for a model on a cluster, then asked for any number of strategies, and of batches of
// one strategy (StrategyTime). `fit` and the search ask the same object.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models/cluster_spec.h"
#include "models/run_spec.h"
#include "planner/model_parts.h"
#include "planner/time/collective_cost.h"
#include "planner/time/compute_time.h"
#include "planner/time/host_time.h"
#include "planner/time/message_times.h"

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
  double busy = 0;  // of compute, what the GPU does beside messages; the host may need longer
  Limit limit = Limit::compute;
};

// What of a step is the same for every batch.
struct FixedTimes {
  MessageTimes messages;
  Messages by_batch;  // all of them, where some grow with the batch: `messages` is empty then
  Cost optimizer;
};

class TimeModel {
 public:
  // `parts` as model_parts(model, strategy) makes them: one TimeModel serves all strategies that
  // train the same parameters; the model stays. Strategies are those that the stacks accept
  // (pp = cp = ep = 1), of one tp.
  TimeModel(ModelParts parts, const models::ClusterSpec& cluster);

  // Whether the GPU is known and has a rate for GEMMs of this precision. Where not, no time is
  // predicted: the operator must not be asked.
  bool knows(models::Precision precision) const;

  double peak_flops(models::Precision precision) const;  // of one GPU, dense

  // Error{unsupported}, {bad_input}: the strategy's stack cannot write it.
  StepTime operator()(const models::Strategy& strategy, const models::Batch& batch) const;

 private:
  friend class StrategyTime;
  struct Kept;
  const ComputeTime& computes(const models::Strategy& strategy) const;
  const FixedTimes& fixed(const models::Strategy& strategy) const;
  MessageTimes message_times(const models::Strategy& strategy, const Messages& messages) const;

  std::vector<double> copies_;  // of each layer of each run's pattern
  Fabric fabric_;
  // What was found out about ways to compute and to share; by all copies of the model.
  std::shared_ptr<Kept> kept_;
};

// What a strategy's batches have in common, computed once: who computes, what is sent and how long
// that takes, the optimizer. Refers to the model.
class StrategyTime {
 public:
  StrategyTime(const TimeModel& model, const models::Strategy& strategy);
  StepTime operator()(const models::Batch& batch) const;

 private:
  const TimeModel& model_;
  models::Strategy strategy_;
  const ComputeTime& computes_;
  const FixedTimes& fixed_;
  std::vector<LayerHost> host_;  // of each layer of each run's pattern
  double wait_ = 0;
};

}  // namespace plimsoll::planner
