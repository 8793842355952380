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
#include "planner/time/exchange.h"

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
  // train the same parameters; the model stays. Strategies are those that the stacks accept
  // (tp = pp = cp = ep = 1).
  TimeModel(ModelParts parts, const models::ClusterSpec& cluster);

  // Whether the GPU is known and has a rate for products of this precision. Where not, no time is
  // predicted: the operator must not be asked.
  bool knows(models::Precision precision) const;

  double peak_flops(models::Precision precision) const;  // of one GPU, dense

  // Error{unsupported}, {bad_input}: the strategy's stack cannot write it.
  StepTime operator()(const models::Strategy& strategy, const models::Batch& batch) const;

 private:
  friend class StrategyTime;
  // One layer of a run's pattern.
  struct Layer {
    double copies = 0;
    double parameters = 0, trainable = 0;  // elements
    double tensors = 0;  // trained ones
    double iteration = 0;  // FLOPs of one over their matrices (models::StepTraffic)
  };
  // The ends of the model, in elements and tensors.
  struct Ends {
    double embedding = 0, embedding_trainable = 0, tail = 0, tail_trainable = 0, tensors = 0;
    bool tied = false;
  };
  struct Computes;
  void add_ends(const std::vector<Parameter>& parameters, double& all, double& trained);
  const ComputeTime& computes(const models::Strategy& strategy) const;

  std::vector<Layer> layers_;
  Ends ends_;
  Fabric fabric_;
  std::shared_ptr<Computes> computes_;  // of each way to compute; by all copies of the model
};

// What a strategy's batches have in common, computed once: who computes, what is exchanged and how
// long the messages take, the optimizer. Refers to the model.
class StrategyTime {
 public:
  StrategyTime(const TimeModel& model, const models::Strategy& strategy);
  StepTime operator()(const models::Batch& batch) const;

 private:
  // Messages of one layer, and copies beside them.
  struct LayerExchange {
    double gather = 0, reduce = 0;
    double regathers = 0;  // for one backward
    Cost copy_out, copy_in;
  };
  const TimeModel& model_;
  const ComputeTime& computes_;
  Execution execution_;
  Exchange exchange_;
  std::vector<LayerExchange> layers_;
  double gather_embedding_ = 0, gather_tail_ = 0, reduce_embedding_ = 0, reduce_tail_ = 0;
  double update_ = 0, optimizer_ = 0, wait_ = 0;
};

}  // namespace plimsoll::planner
