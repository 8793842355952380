// What forward and backward of a micro-batch take on one GPU, from the program that its stack
// writes: as a function of the batch, for one who asks of many.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "models/cluster_spec.h"
#include "planner/model_parts.h"
#include "planner/time/compute_cost.h"

namespace plimsoll::planner {

struct PartCost {
  Cost forward, backward;  // backward: with what is computed again
};
struct ComputeCost {
  std::vector<PartCost> layers;  // each layer of each run's pattern, in the model's order
  PartCost ends;  // embedding, final norm, head, loss
};

// The work of a micro-batch by its number of sequences. Beyond one sequence (where copies vanish)
// every amount is a straight line: two batches say them all.
class WorkByBatch {
 public:
  WorkByBatch(const StepWork& two, const StepWork& three);
  explicit WorkByBatch(const StepWork& one) : WorkByBatch(one, one) {}
  void cost(const GpuRates& gpu, const Execution& execution, double sequences,
            ComputeCost& out) const;

 private:
  struct GemmLine {
    Gemm at_two, at_three;
    double times = 1;  // equal ones
  };
  struct AttentionLine {
    FusedAttention at_two;
    double more = 0;  // FLOPs a sequence
  };
  struct Line {
    std::vector<GemmLine> gemms;
    std::vector<AttentionLine> attentions;
    WorkSum at_two, at_three;  // without either
  };
  static Line line_of(const WorkSum& two, const WorkSum& three);
  static Cost cost(const GpuRates& gpu, const Execution& e, const Line& line, double x);
  std::vector<Line> lines_;  // forward and backward of each layer, then of the ends
};

// Of one way to compute: what of a strategy decides the ops. Safe to use from several threads.
class ComputeTime {
 public:
  // `strategy`: as computing_part() says.
  ComputeTime(const ModelParts& parts, const models::ClusterSpec& cluster, const GpuRates& gpu,
              const models::Strategy& strategy);
  // Good until this thread asks for the next one. Error{unsupported}: the stack cannot write it.
  const ComputeCost& of(const models::Batch& batch) const;

 private:
  const WorkByBatch& work(const models::Batch& batch) const;
  WorkByBatch write(models::Batch batch) const;

  std::uint64_t id_;
  const ModelParts& parts_;
  const models::ClusterSpec& cluster_;
  const GpuRates& gpu_;
  models::Strategy strategy_;
  Execution execution_;
  struct Known;
  std::shared_ptr<Known> known_;
};

// What of the strategy decides the ops that compute: of one GPU, or of two where sharding changes
// dtypes. Error{unsupported}, {bad_input}: the stack refuses it.
models::Strategy compute_of_one_gpu(const models::Strategy& strategy);
// The same as far as time tells it apart. Strategies with equal answers share a ComputeTime.
models::Strategy computing_part(const models::Strategy& strategy);

}  // namespace plimsoll::planner
