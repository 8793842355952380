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

const Share kCommunicationUse = communication_use();

// Work on the GPU, and messages beside it.
struct Overlap {
  double compute = 0, communication = 0, exposed = 0;
  double spare = 0;  // compute of backward that hides nothing yet
  Cost work;

  void run(double times, const Cost& cost) {
    work += times * cost;
    compute += times * cost.seconds();
  }
  // `times` messages, each beside work of so many seconds.
  void hide(double times, double message, double beside) {
    const double hidden = std::min(message, beside);
    compute += times * kCommunicationUse.value * hidden;
    communication += times * message;
    exposed += times * (message - hidden);
  }
  // Beside whatever of backward hides nothing yet.
  void hide_late(double message) {
    hide(1, message, spare);
    spare -= std::min(message, spare);
  }
  void expose(double message) { hide(1, message, 0); }
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
  // A unit is gathered beside the unit before it, and reduced beside the backward of that one:
  // nothing runs beside the first layer's.
  double alone = 1, forward_seconds = 0;
  for (const LayerCost& layer : layers_) {
    const LayerWork work = layer_work(gpu_, layer, e);
    const double gather = messages.gather(layer.parameters);
    const Cost copy_out = messages.copy_out(layer.parameters);
    const Cost forward = sum(work.forward, copy_out);
    forward_seconds = forward.seconds();
    step.run(layer.copies * micros, forward);
    step.hide((layer.copies - alone) * micros, gather, forward_seconds);
    step.expose(alone * micros * gather);
    Cost backward = work.backward;
    if (s.recompute.kind == RecomputeKind::selective) backward += work.attention;
    if (recomputes) backward += reentrant_ ? work.forward : work.again;
    double again = 0;
    if (x.regathers && work.backward.busy() > 0) {
      again = regathers(s, layer.copies) * gather;
      backward += regathers(s, layer.copies) * copy_out;
    }
    const double reduce = messages.reduce(layer.trainable), seconds = backward.seconds();
    step.run(layer.copies * micros, backward);
    step.run(layer.copies * reductions, messages.copy_in(layer.trainable));
    step.hide(layer.copies * (micros - reductions), again, seconds);
    const double beside = (layer.copies - alone) * reductions;
    step.hide(beside, again + reduce, x.overlaps ? seconds : 0);
    step.hide(alone * reductions, again, seconds);
    step.expose(alone * reductions * reduce);
    step.spare += beside * std::max(0.0, seconds - again - reduce);
    trained += layer.copies * layer.trainable;
    tensors += layer.copies * layer.tensors;
    alone = 0;
  }
  const EndsWork ends = ends_work(gpu_, ends_, e);
  step.run(micros, ends.forward);
  step.run(micros, ends.backward);
  step.hide(micros, messages.gather(ends_.tail), forward_seconds);
  step.expose(micros * messages.gather(ends_.embedding));
  // The head's gradient is there first, a tied table's last.
  const double tail = reductions * messages.reduce(ends_.tail_trainable);
  if (ends_.tied || !x.overlaps)
    step.expose(tail);
  else
    step.hide_late(tail);
  step.expose(reductions * messages.reduce(ends_.embedding_trainable));
  step.expose(messages.update(trained));
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
