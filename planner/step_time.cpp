#include "planner/step_time.h"

#include <algorithm>
#include <array>

namespace plimsoll::planner {

using models::Batch;
using models::RecomputeKind;
using models::Strategy;

const char* name_of(Limit limit) {
  constexpr std::array<const char*, 5> names{"compute", "memory bandwidth", "kernel launches",
                                             "links inside the node", "links between nodes"};
  return names[static_cast<std::size_t>(limit)];
}

namespace {

// The two groups of data parallelism: ranks that share one copy, and copies.
struct Groups {
  Group shards, replicas;
};

Groups groups_of(const Strategy& s) {
  const std::int64_t all = s.gpus;
  if (s.data.zero == 0) return {{}, group_of(all, 1, s.gpus_per_node)};
  const std::int64_t shards = s.data.shard_group > 0 ? s.data.shard_group : all;
  return {group_of(shards, 1, s.gpus_per_node), group_of(all / shards, shards, s.gpus_per_node)};
}

// Time of compute and communication that run beside each other, unit by unit.
struct Overlap {
  double compute = 0, communication = 0, exposed = 0;
  Cost work;
  // `times` units: each hides its communication behind its own compute.
  void add(double times, const Cost& cost, double beside) {
    const double seconds = cost.seconds();
    work += times * cost;
    compute += times * seconds;
    communication += times * beside;
    exposed += times * std::max(0.0, beside - seconds);
  }
  void add_exposed(double seconds) {
    communication += seconds;
    exposed += seconds;
  }
};

Cost sum(Cost a, const Cost& b) {
  return a += b;
}

}  // namespace

TimeModel::TimeModel(const ModelParts& parts, const models::ClusterSpec& cluster)
    : ends_(ends_cost(parts)), fabric_(fabric_of(cluster)) {
  for (const LayerRun& run : parts.runs) layers_.push_back(layer_cost(run, parts.decoder));
  if (cluster.gpu) gpu_ = gpu_rates(*cluster.gpu);
}

bool TimeModel::knows(models::Precision precision) const {
  Strategy s;
  s.precision = precision;
  return gpu_.memory > 0 && gpu_.rate(execution_of(s, {}).compute) > 0 &&
         precision != models::Precision::fp8_mixed;
}

StepTime TimeModel::operator()(const Strategy& s, const Batch& batch) const {
  const Execution e = execution_of(s, batch);
  const Groups groups = groups_of(s);
  const bool sharded = s.data.zero >= 3 || (s.data.zero == 2 && s.stack == models::Stack::pytorch);
  const bool reshards = s.data.zero >= 3;
  const double micros = static_cast<double>(batch.grad_accum);
  const double low = e.compute == DType::fp32 ? 4 : 2;
  Overlap step;
  double trained = ends_.embedding_trainable + ends_.tail_trainable, tensors = ends_.tensors;
  // Gradients of a unit, reduced at the last micro-batch beside the backward of the next unit.
  const auto reduction = [&](double elements) {
    const double bytes = elements * (e.autocast ? 4 : low);
    if (s.data.zero == 0) return all_reduce_seconds(fabric_, groups.replicas, bytes);
    const double piece = bytes / static_cast<double>(groups.shards.ranks);
    return reduce_scatter_seconds(fabric_, groups.shards, bytes) +
           all_reduce_seconds(fabric_, groups.replicas, piece);
  };
  const auto gather = [&](double elements) {
    return sharded ? all_gather_seconds(fabric_, groups.shards, elements * low) : 0;
  };
  for (const LayerCost& layer : layers_) {
    const LayerWork work = layer_work(gpu_, layer, e);
    const double copies = static_cast<double>(layer.copies);
    const double unit = gather(layer.parameters);
    Cost backward = work.backward;
    if (s.recompute.kind == RecomputeKind::selective)
      backward += work.attention;
    else if (s.recompute.kind != RecomputeKind::none)
      backward += work.forward;
    step.add(copies * micros, work.forward, unit);
    const double again = reshards ? unit : 0;
    step.add(copies * (micros - 1), backward, again);
    step.add(copies, backward, again + reduction(layer.trainable));
    trained += copies * layer.trainable;
    tensors += copies * layer.tensors;
  }
  const EndsWork ends = ends_work(gpu_, ends_, e);
  step.add(micros, sum(ends.embedding, ends.head), gather(ends_.tail));
  step.add(micros, sum(ends.embedding_backward, ends.head_backward), 0);
  // The first gather has nothing to hide behind, the last reduction neither.
  step.add_exposed(gather(ends_.embedding) + reduction(ends_.embedding_trainable));
  step.add_exposed(reduction(ends_.tail_trainable));
  StepTime time;
  const double own =
      s.data.zero == 0 ? trained : trained / static_cast<double>(groups.shards.ranks);
  time.optimizer = optimizer_cost(gpu_, s, own, tensors).seconds();
  const bool updates = s.data.zero == 1 || (s.data.zero == 2 && !sharded);
  if (updates) step.add_exposed(all_gather_seconds(fabric_, groups.shards, trained * low));
  time.compute = step.compute;
  time.communication = step.communication;
  time.exposed_communication = step.exposed;
  time.step = time.compute + time.exposed_communication + time.optimizer;
  const bool crosses = groups.shards.crosses_nodes() || groups.replicas.crosses_nodes();
  const double memory = step.work.memory + time.optimizer;
  if (time.exposed_communication > 0.5 * time.step)
    time.limit = crosses ? Limit::inter_node : Limit::intra_node;
  else if (step.work.launches > step.work.busy())
    time.limit = Limit::launches;
  else if (memory > step.work.products)
    time.limit = Limit::memory_bandwidth;
  return time;
}

}  // namespace plimsoll::planner
