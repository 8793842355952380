#include "planner/step_time.h"

#include <algorithm>
#include <array>

#include "models/decisions/layer.h"
#include "planner/exchange.h"

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
  // Once: a message beside whatever of backward hides nothing yet.
  void add_late(double seconds, bool overlaps) {
    const double hidden = overlaps ? std::min(seconds, spare) : 0;
    spare -= hidden;
    compute += kProcessorUse * hidden;
    communication += seconds;
    exposed += seconds - hidden;
  }
};

Cost sum(Cost a, const Cost& b) {
  return a += b;
}

// How often a layer is gathered for one backward. plimsoll gathers all but a checkpoint's last
// layer once more to compute it again (models/decisions/sharding.h); FSDP keeps what its hook
// before backward gathered.
double regathers(const Strategy& s, double layers) {
  if (s.stack != Stack::plimsoll || !models::decisions::recomputes_layers(s.recompute.kind))
    return 1;
  const double k = static_cast<double>(
      models::decisions::layers_per_checkpoint(s.recompute, static_cast<std::int64_t>(layers)));
  return 1 + (k - 1) / k;
}

Limit limit_of(const Overlap& step, double optimizer, bool crosses) {
  const std::array<double, 4> parts{step.work.products, step.work.memory + optimizer,
                                    step.work.launches > step.work.busy() ? step.work.launches : 0,
                                    step.exposed};
  const auto most = std::max_element(parts.begin(), parts.end()) - parts.begin();
  if (most < 3) return static_cast<Limit>(most);
  return crosses ? Limit::inter_node : Limit::intra_node;
}

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
  const Exchange x = exchange_of(s, e);
  const Messages messages(fabric_, x, e, gpu_.memory);
  const double micros = static_cast<double>(batch.grad_accum);
  const double reductions = x.reduces_each ? micros : 1;
  const bool recomputes = models::decisions::recomputes_layers(s.recompute.kind);
  Overlap step;
  double trained = ends_.embedding_trainable + ends_.tail_trainable, tensors = ends_.tensors;
  for (const LayerCost& layer : layers_) {
    const LayerWork work = layer_work(gpu_, layer, e);
    const double gather = messages.gather(layer.parameters);
    const Cost copy_out = messages.copy_out(layer.parameters);
    Cost backward = work.backward;
    if (s.recompute.kind == RecomputeKind::selective) backward += work.attention;
    if (recomputes) backward += reentrant_ ? work.forward : work.again;
    step.add(layer.copies * micros, sum(work.forward, copy_out), gather);
    double again = 0;
    if (x.regathers && work.backward.busy() > 0) {
      again = regathers(s, layer.copies) * gather;
      backward += regathers(s, layer.copies) * copy_out;
    }
    const double reduce = messages.reduce(layer.trainable);
    step.add(layer.copies * (micros - reductions), backward, again);
    step.add(layer.copies * reductions, messages.copy_in(layer.trainable), 0);
    if (x.overlaps) {
      step.add(layer.copies * reductions, backward, again + reduce);
      step.spare += layer.copies * reductions * std::max(0.0, backward.seconds() - again - reduce);
    } else {
      step.add(layer.copies * reductions, backward, again);
      step.add_exposed(layer.copies * reductions * reduce);
    }
    trained += layer.copies * layer.trainable;
    tensors += layer.copies * layer.tensors;
  }
  const EndsWork ends = ends_work(gpu_, ends_, e);
  step.add(micros, ends.forward, messages.gather(ends_.tail));
  step.add(micros, ends.backward, 0);
  step.add_late(reductions * messages.reduce(ends_.tail_trainable), x.overlaps);
  // Nothing runs beside the first gather and the last reduction.
  step.add_exposed(micros * messages.gather(ends_.embedding));
  step.add_exposed(reductions * messages.reduce(ends_.embedding_trainable));
  step.add_exposed(messages.update(trained));
  const double own = x.steps_shard ? trained / static_cast<double>(x.shards.ranks) : trained;
  StepTime time;
  time.optimizer = optimizer_cost(gpu_, s, e, own, tensors).seconds();
  const double wait = speed_spread().value * slowest_of(static_cast<double>(s.gpus));
  time.compute = step.compute * (1 + wait);
  time.communication = step.communication;
  time.exposed_communication = step.exposed;
  time.step = time.compute + time.exposed_communication + time.optimizer;
  time.limit =
      limit_of(step, time.optimizer, x.shards.crosses_nodes() || x.replicas.crosses_nodes());
  return time;
}

}  // namespace plimsoll::planner
