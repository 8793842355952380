#include "planner/time/step_time.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "models/decisions/layer.h"
#include "planner/stacks/stack_info.h"

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

// How often a layer is gathered for one backward. plimsoll gathers all but a checkpoint's last
// layer once more to compute it again (models/decisions/sharding.h); FSDP keeps what its hook
// before backward gathered.
double regathers(const Strategy& s, double layers) {
  if (!stack_info(s.stack).regathers_recomputed ||
      !models::decisions::recomputes_layers(s.recompute.kind))
    return 1;
  const double k = static_cast<double>(
      models::decisions::layers_per_checkpoint(s.recompute, static_cast<std::int64_t>(layers)));
  return 1 + (k - 1) / k;
}

Limit limit_of(const Overlap& step, double optimizer, bool crosses) {
  const std::array<double, 4> parts{step.work.gemm, step.work.memory + optimizer,
                                    step.work.launches > step.work.busy() ? step.work.launches : 0,
                                    step.exposed};
  const auto most = std::max_element(parts.begin(), parts.end()) - parts.begin();
  if (most < 3) return static_cast<Limit>(most);
  return crosses ? Limit::inter_node : Limit::intra_node;
}

// X Xᵀ of a matrix with s rows and l >= s columns, its square, and its product with X.
double iteration_flops(const Parameter& p) {
  if (p.columns == 0 || p.rows * p.columns != p.elements) return 0;
  const auto s = static_cast<double>(std::min(p.rows, p.columns));
  const auto l = static_cast<double>(std::max(p.rows, p.columns));
  return 2 * s * s * (2 * l + s);
}

struct StrategyHash {
  std::size_t operator()(const Strategy& s) const {
    std::size_t h = 0;
    const auto mix = [&](auto value) {
      h = (h ^ static_cast<std::size_t>(value)) * 0x9E3779B97F4A7C15;
      h ^= h >> 32;
    };
    mix(s.stack);
    mix(s.data.zero);
    mix(s.precision);
    mix(s.recompute.kind);
    mix(s.attention);
    mix(s.loss);
    mix(s.kernels);
    mix(s.lora.has_value());
    return h;
  }
};

}  // namespace

struct TimeModel::Computes {
  ModelParts parts;
  models::ClusterSpec cluster;
  GpuRates gpu;
  std::mutex mutex;
  std::unordered_map<Strategy, std::unique_ptr<ComputeTime>, StrategyHash> all;
};

TimeModel::TimeModel(ModelParts parts, const models::ClusterSpec& cluster)
    : fabric_(fabric_of(cluster)), computes_(std::make_shared<Computes>()) {
  for (const LayerRun& run : parts.runs)
    for (const LayerPart& part : run.pattern) {
      Layer& layer = layers_.emplace_back();
      layer.copies = static_cast<double>(run.repeats());
      for (const Parameter& p : part.parameters) {
        layer.parameters += static_cast<double>(p.elements);
        if (!p.trainable) continue;
        layer.trainable += static_cast<double>(p.elements);
        layer.tensors += 1;
        layer.iteration += iteration_flops(p);
      }
    }
  ends_.tied = parts.decoder.tied_head;
  add_ends(parts.embedding, ends_.embedding, ends_.embedding_trainable);
  add_ends(parts.tail, ends_.tail, ends_.tail_trainable);
  computes_->parts = std::move(parts);
  computes_->cluster = cluster;
  if (cluster.gpu) computes_->gpu = gpu_rates(*cluster.gpu);
}

void TimeModel::add_ends(const std::vector<Parameter>& parameters, double& all, double& trained) {
  for (const Parameter& p : parameters) {
    all += static_cast<double>(p.elements);
    if (!p.trainable) continue;
    trained += static_cast<double>(p.elements);
    ends_.tensors += 1;
  }
}

double TimeModel::peak_flops(models::Precision precision) const {
  if (precision == models::Precision::fp8_mixed) return 0;
  Strategy s;
  s.precision = precision;
  return computes_->gpu.peaks[rate_index(execution_of(s).compute)];
}

bool TimeModel::knows(models::Precision precision) const {
  return computes_->gpu.memory > 0 && peak_flops(precision) > 0;
}

const ComputeTime& TimeModel::computes(const Strategy& s) const {
  const Strategy part = computing_part(s);
  Computes& known = *computes_;
  const std::lock_guard lock(known.mutex);
  std::unique_ptr<ComputeTime>& of = known.all[part];
  if (!of) of = std::make_unique<ComputeTime>(known.parts, known.cluster, known.gpu, part);
  return *of;
}

StepTime TimeModel::operator()(const Strategy& s, const Batch& batch) const {
  return StrategyTime(*this, s)(batch);
}

StrategyTime::StrategyTime(const TimeModel& model, const Strategy& s)
    : model_(model),
      computes_(model.computes(s)),
      execution_(execution_of(s)),
      exchange_(exchange_of(s, execution_)) {
  const Exchange& x = exchange_;
  const TimeModel::Ends& ends = model.ends_;
  const GpuRates& gpu = model.computes_->gpu;
  const Messages messages(model.fabric_, x, execution_, gpu.memory);
  double trained = ends.embedding_trainable + ends.tail_trainable, tensors = ends.tensors;
  double iteration = 0;
  for (const TimeModel::Layer& layer : model.layers_) {
    layers_.push_back({messages.gather(layer.parameters), messages.reduce(layer.trainable),
                       regathers(s, layer.copies), messages.copy_out(layer.parameters),
                       messages.copy_in(layer.trainable)});
    trained += layer.copies * layer.trainable;
    tensors += layer.copies * layer.tensors;
    iteration += layer.copies * layer.iteration;
  }
  gather_embedding_ = messages.gather(ends.embedding);
  gather_tail_ = messages.gather(ends.tail);
  // A tied table is the tail's: plimsoll gathers that for the embedding, and anew for the head;
  // FSDP keeps what it gathered.
  if (ends.tied && stack_info(s.stack).gathers_tied_twice) gather_embedding_ += gather_tail_;
  reduce_embedding_ = messages.reduce(ends.embedding_trainable);
  reduce_tail_ = messages.reduce(ends.tail_trainable);
  update_ = messages.update(trained);
  const double own = x.steps_shard ? trained / static_cast<double>(x.shards.ranks) : trained;
  optimizer_ = optimizer_cost(gpu, s, execution_, own, tensors, iteration).seconds();
  wait_ = waiting(static_cast<double>(s.gpus),
                  std::ceil(static_cast<double>(s.gpus) / static_cast<double>(s.gpus_per_node)));
}

StepTime StrategyTime::operator()(const Batch& batch) const {
  const Exchange& x = exchange_;
  const ComputeCost& all = computes_.of(batch);
  check(all.layers.size() == layers_.size(), ErrorKind::internal,
        "the program of one GPU has other layers than the model");
  const double micros = static_cast<double>(batch.grad_accum);
  const double reductions = x.reduces_each ? micros : 1;
  Overlap step;
  // A unit is gathered beside the unit before it, and reduced beside the backward of that one:
  // nothing runs beside the first layer's.
  double alone = 1, forward_seconds = 0;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const PartCost& work = all.layers[i];
    const LayerExchange& m = layers_[i];
    const double copies = model_.layers_[i].copies;
    const Cost forward = work.forward + m.copy_out;
    forward_seconds = forward.seconds();
    step.run(copies * micros, forward);
    step.hide((copies - alone) * micros, m.gather, forward_seconds);
    step.expose(alone * micros * m.gather);
    Cost backward = work.backward;
    double again = 0;
    if (x.regathers && work.backward.busy() > 0) {
      again = m.regathers * m.gather;
      backward += m.regathers * m.copy_out;
    }
    const double seconds = backward.seconds();
    step.run(copies * micros, backward);
    step.run(copies * reductions, m.copy_in);
    step.hide(copies * (micros - reductions), again, seconds);
    const double beside = (copies - alone) * reductions;
    step.hide(beside, again + m.reduce, x.overlaps ? seconds : 0);
    step.hide(alone * reductions, again, seconds);
    step.expose(alone * reductions * m.reduce);
    step.spare += beside * std::max(0.0, seconds - again - m.reduce);
    alone = 0;
  }
  step.run(micros, all.ends.forward);
  step.run(micros, all.ends.backward);
  step.hide(micros, gather_tail_, forward_seconds);
  step.expose(micros * gather_embedding_);
  // The head's gradient is there first, a tied table's last.
  const double tail = reductions * reduce_tail_;
  if (model_.ends_.tied || !x.overlaps)
    step.expose(tail);
  else
    step.hide_late(tail);
  step.expose(reductions * reduce_embedding_);
  step.expose(update_);
  StepTime time;
  time.optimizer = optimizer_;
  time.compute = step.compute * (1 + wait_);
  time.communication = step.communication;
  time.exposed_communication = step.exposed;
  time.step = time.compute + time.exposed_communication + time.optimizer;
  time.limit =
      limit_of(step, time.optimizer, x.shards.crosses_nodes() || x.replicas.crosses_nodes());
  return time;
}

}  // namespace plimsoll::planner
