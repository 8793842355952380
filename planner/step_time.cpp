#include "planner/step_time.h"

#include <algorithm>
#include <array>

#include "models/decisions/layer.h"
#include "models/decisions/sharding.h"

namespace plimsoll::planner {

using models::Batch;
using models::RecomputeKind;
using models::Stack;
using models::Strategy;

const char* name_of(Limit limit) {
  constexpr std::array<const char*, 5> names{"compute", "memory bandwidth", "kernel launches",
                                             "links inside the node", "links between nodes"};
  return names[static_cast<std::size_t>(limit)];
}

namespace {

// Of the processor, what a running NCCL kernel takes from the compute beside it: calculon, arXiv
// 2310.01966, systems/a100_80g.json, processor_usage of the NVLink network.
constexpr double kProcessorUse = 0.15;

// What the ranks exchange, by stack. See models/decisions/sharding.h and the stacks' collectives.
struct Exchange {
  Group shards, replicas;
  bool shards_parameters = false;  // gathered before use
  bool reshards = false;  // gathered again for backward
  bool reduces_each = false;  // at every micro-batch, not only the last
  bool gathers_updates = false;  // parameters after the optimizer's step
  bool steps_shard = false;  // the optimizer steps this rank's part
  bool copies = false;  // into and out of messages
  double bucket = 0;  // bytes; 0: a unit is one message
};

Exchange exchange_of(const Strategy& s) {
  const models::decisions::Sharding sharding = models::decisions::sharding_of(s);
  Exchange x;
  x.shards = group_of(sharding.shards, 1, s.gpus_per_node);
  x.replicas = group_of(sharding.replicas, sharding.shards, s.gpus_per_node);
  const bool torch = s.stack == Stack::pytorch;
  x.shards_parameters = sharding.stage >= (torch ? 2 : 3);
  x.reshards = sharding.stage == 3;
  x.copies = torch && x.shards_parameters && s.data.fsdp_version == 2;
  x.reduces_each = !torch && sharding.stage >= 2;
  x.gathers_updates = sharding.stage > 0 && !x.shards_parameters;
  x.steps_shard = sharding.stage > 0;
  if (!x.shards_parameters) x.bucket = s.data.bucket_cap.real();
  return x;
}

// Work on the GPU and messages beside it, unit by unit.
struct Overlap {
  double compute = 0, communication = 0, exposed = 0;
  double spare = 0;  // compute of backward that hides nothing yet
  Cost work;

  // `times` units, each hiding its messages behind its own compute.
  void add(double times, const Cost& cost, double beside) {
    const double seconds = cost.seconds(), hidden = std::min(beside, seconds);
    work += times * cost;
    compute += times * (seconds + kProcessorUse * hidden);
    communication += times * beside;
    exposed += times * (beside - hidden);
  }
  void add_exposed(double seconds) {
    communication += seconds;
    exposed += seconds;
  }
  // Messages that any of the compute so far noted as spare can hide.
  void add_late(double seconds) {
    const double hidden = std::min(seconds, spare);
    spare -= hidden;
    compute += kProcessorUse * hidden;
    communication += seconds;
    exposed += seconds - hidden;
  }
};

Cost sum(Cost a, const Cost& b) {
  return a += b;
}

Limit limit_of(const Overlap& step, double optimizer, bool crosses) {
  const std::array<double, 4> parts{step.work.products, step.work.memory + optimizer,
                                    step.work.launches > step.work.busy() ? step.work.launches : 0,
                                    step.exposed};
  const auto most = std::max_element(parts.begin(), parts.end()) - parts.begin();
  if (most < 3) return static_cast<Limit>(most);
  return crosses ? Limit::inter_node : Limit::intra_node;
}

// Seconds of the messages of one unit's parameters and gradients, in elements.
class Messages {
 public:
  Messages(const Fabric& fabric, const Exchange& exchange, const Execution& execution)
      : fabric_(fabric), x_(exchange), e_(execution) {}

  double gather(double elements) const {
    if (!x_.shards_parameters) return 0;
    return all_gather_seconds(fabric_, x_.shards, elements * e_.gathered);
  }
  double reduce(double elements) const {
    const double bytes = elements * e_.reduced;
    if (!x_.steps_shard) return bucketed(x_.replicas, bytes);
    const double piece = bytes / static_cast<double>(x_.shards.ranks);
    return reduce_scatter_seconds(fabric_, x_.shards, bytes) +
           all_reduce_seconds(fabric_, x_.replicas, piece);
  }
  // FSDP2 copies what it gathered into one tensor for each parameter, and gradients into the
  // message (_fsdp_collectives.py: foreach_all_gather_copy_out, foreach_reduce_scatter_copy_in).
  Cost copy_out(double elements, double memory) const {
    return {0, x_.copies ? elements * 2 * e_.gathered / memory : 0, 0};
  }
  Cost copy_in(double elements, double memory) const {
    return {0, x_.copies ? elements * (e_.low + e_.reduced) / memory : 0, 0};
  }
  double updates(double elements) const {
    if (!x_.gathers_updates) return 0;
    return all_gather_seconds(fabric_, x_.shards, elements * e_.gathered);
  }

 private:
  double bucketed(const Group& group, double bytes) const {
    const double messages = x_.bucket > 0 ? std::max(1.0, bytes / x_.bucket) : 1;
    return messages * all_reduce_seconds(fabric_, group, bytes / messages);
  }
  const Fabric& fabric_;
  const Exchange& x_;
  const Execution& e_;
};

}  // namespace

TimeModel::TimeModel(const ModelParts& parts, const models::ClusterSpec& cluster,
                     const Software& software)
    : ends_(ends_cost(parts)),
      fabric_(fabric_of(cluster)),
      reentrant_(software.reentrant_checkpoints) {
  for (const LayerRun& run : parts.runs) layers_.push_back(layer_cost(run, parts.decoder));
  if (cluster.gpu) gpu_ = gpu_rates(*cluster.gpu, software);
}

double TimeModel::peak_flops(models::Precision precision) const {
  if (precision == models::Precision::fp8_mixed) return 0;
  Strategy s;
  s.precision = precision;
  return gpu_.peaks[rate_index(execution_of(s, {}).compute)];
}

bool TimeModel::knows(models::Precision precision) const {
  return gpu_.memory > 0 && peak_flops(precision) > 0;
}

StepTime TimeModel::operator()(const Strategy& s, const Batch& batch) const {
  const Execution e = execution_of(s, batch);
  const Exchange x = exchange_of(s);
  const Messages messages(fabric_, x, e);
  const double micros = static_cast<double>(batch.grad_accum);
  const double reductions = x.reduces_each ? micros : 1;
  Overlap step;
  double trained = ends_.embedding_trainable + ends_.tail_trainable, tensors = ends_.tensors;
  for (const LayerCost& layer : layers_) {
    const LayerWork work = layer_work(gpu_, layer, e);
    const Cost copy_out = messages.copy_out(layer.parameters, gpu_.memory);
    const double gather = messages.gather(layer.parameters);
    Cost backward = work.backward;
    if (s.recompute.kind == RecomputeKind::selective) backward += work.attention;
    if (models::decisions::recomputes_layers(s.recompute.kind))
      backward += reentrant_ ? work.forward : work.again;
    step.add(layer.copies * micros, sum(work.forward, copy_out), gather);
    const double again = x.reshards ? gather : 0;
    if (x.reshards) backward += copy_out;
    const double reduce = messages.reduce(layer.trainable);
    step.add(layer.copies * reductions, messages.copy_in(layer.trainable, gpu_.memory), 0);
    step.add(layer.copies * (micros - reductions), backward, again);
    step.add(layer.copies * reductions, backward, again + reduce);
    step.spare += reductions * layer.copies * std::max(0.0, backward.seconds() - again - reduce);
    trained += layer.copies * layer.trainable;
    tensors += layer.copies * layer.tensors;
  }
  const EndsWork ends = ends_work(gpu_, ends_, e);
  step.add(micros, ends.forward, messages.gather(ends_.tail));
  step.add(micros, ends.backward, 0);
  step.add_late(reductions * messages.reduce(ends_.tail_trainable));
  // Nothing runs beside the first gather and the last reduction: a layer's where the head's table
  // is the embedding's.
  step.add_exposed(messages.gather(ends_.embedding));
  step.add_exposed(messages.reduce(ends_.embedding_trainable));
  const double own = x.steps_shard ? trained / static_cast<double>(x.shards.ranks) : trained;
  step.add_exposed(messages.updates(trained));
  StepTime time;
  time.optimizer = optimizer_cost(gpu_, s, e, own, tensors).seconds();
  time.compute = step.compute;
  time.communication = step.communication;
  time.exposed_communication = step.exposed;
  time.step = time.compute + time.exposed_communication + time.optimizer;
  time.limit =
      limit_of(step, time.optimizer, x.shards.crosses_nodes() || x.replicas.crosses_nodes());
  return time;
}

}  // namespace plimsoll::planner
