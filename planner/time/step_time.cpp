#include "planner/time/step_time.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "models/decisions/layer.h"
#include "models/decisions/mesh.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner {

using models::Batch;
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
  Cost work;

  void run(double times, const Cost& cost) { run(times, cost, cost.seconds()); }
  void run(double times, const Cost& cost, double seconds) {
    work += times * cost;
    compute += times * seconds;
  }
  // `times` messages, each beside work of so many seconds.
  void hide(double times, double message, double beside) {
    const double hidden = std::min(message, beside);
    compute += times * kCommunicationUse.value * hidden;
    communication += times * message;
    exposed += times * (message - hidden);
  }
  void expose(double message) { hide(1, message, 0); }
};

// A pass over a layer, with so many units in it.
double seconds_of(const Cost& cost, double units, const LayerHost& host) {
  if (units <= kUnitsAhead) return cost.seconds();
  const double beside = host.between_units * cost.busy();
  return cost.busy() - beside + std::max(beside, cost.launches);
}

// One micro-batch, so many times. A unit is gathered beside the unit before it, and reduced beside
// the backward of that one: nothing runs beside the first layer's.
void add_micro_batches(const ComputeCost& work, const std::vector<LayerHost>& host,
                       const std::vector<double>& layers, const MicroBatchMessages& messages,
                       double times, Overlap& step) {
  double alone = 1, forward_seconds = 0, spare = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerMessages& m = messages.layers[i];
    const double copies = layers[i], beside = copies - alone;
    const Cost forward = work.layers[i].forward + host[i].python.forward + m.forward.copies;
    forward_seconds = seconds_of(forward, m.forward.count, host[i]);
    step.run(copies * times, forward, forward_seconds);
    step.hide(beside * times, m.forward.beside, forward_seconds);
    step.expose(alone * times * m.forward.beside);
    const Cost gathered = work.layers[i].backward + host[i].python.backward + m.backward.copies;
    const Cost backward = gathered + m.reduction.copies;
    const double seconds = seconds_of(gathered, m.backward.count, host[i]);
    const double reduced = m.reduction.beside;
    step.run(copies * times, backward, seconds_of(backward, m.backward.count, host[i]));
    step.hide(beside * times, m.backward.beside + reduced, seconds);
    step.hide(alone * times, m.backward.beside, seconds);
    step.expose(alone * times * reduced);
    step.expose(copies * times * (m.forward.alone + m.backward.alone + m.reduction.alone));
    spare += beside * std::max(0.0, seconds - m.backward.beside - reduced);
    alone = 0;
  }
  step.run(times, work.ends.forward);
  step.run(times, work.ends.backward + messages.copies);
  step.hide(times, messages.tail, forward_seconds);
  step.hide(times, messages.late, spare);
  step.expose(times * messages.alone);
}

// What of a strategy decides its messages and its optimizer's step, roughly. Nothing is gathered
// again below ZeRO-3, and where layers gather for themselves, a checkpoint of several does as those
// of one.
Strategy fixed_part(const Strategy& s) {
  Strategy out = s;
  out.allocator = {};
  out.hold_outputs = false;
  out.compile = models::Compile::no;
  // FSDP does not see fused adapters of a packed base.
  if (!s.lora || !s.quantize) out.kernels = models::Kernels::eager;
  out.attention = models::Attention::flash;
  out.loss = models::Loss::full;
  if (s.tp > 1) return out;  // what is run again sends activations again
  const bool layers = models::decisions::recomputes_layers(s.recompute.kind);
  if (s.data.zero < 3 || !layers)
    out.recompute = {};
  else if (stack_info(s.stack).runs_transformers)
    out.recompute = {models::RecomputeKind::full, 1};
  return out;
}

Limit limit_of(const Overlap& step, double optimizer, bool crosses) {
  const std::array<double, 4> parts{step.work.gemm, step.work.memory + optimizer,
                                    step.work.launches > step.work.busy() ? step.work.launches : 0,
                                    step.exposed};
  const auto most = std::max_element(parts.begin(), parts.end()) - parts.begin();
  if (most < 3) return static_cast<Limit>(most);
  return crosses ? Limit::inter_node : Limit::intra_node;
}

struct StrategyHash {
  std::size_t operator()(const Strategy& s) const {
    std::size_t h = 0;
    const auto mix = [&](auto value) {
      h = (h ^ static_cast<std::size_t>(value)) * 0x9E3779B97F4A7C15;
      h ^= h >> 32;
    };
    mix(s.stack);
    mix(s.gpus);
    mix(s.data.zero);
    mix(s.data.shard_group);
    mix(s.precision);
    mix(s.recompute.kind);
    mix(s.recompute.layers);
    mix(s.attention);
    mix(s.loss);
    mix(s.kernels);
    mix(s.optimizer);
    mix(s.lora.has_value());
    return h;
  }
};

}  // namespace

struct TimeModel::Kept {
  ModelParts parts;
  models::ClusterSpec cluster;
  GpuRates gpu, own;  // of PyTorch's kernels, of ours
  const GpuRates& of(const Strategy& s) const {
    return stack_info(s.stack).own_kernels ? own : gpu;
  }
  std::mutex mutex;
  std::unordered_map<Strategy, std::unique_ptr<ComputeTime>, StrategyHash> computes;
  std::unordered_map<Strategy, FixedTimes, StrategyHash> fixed;
};

TimeModel::TimeModel(ModelParts parts, const models::ClusterSpec& cluster)
    : fabric_(fabric_of(cluster)), kept_(std::make_shared<Kept>()) {
  for (const LayerRun& run : parts.runs)
    copies_.insert(copies_.end(), run.pattern.size(), static_cast<double>(run.repeats()));
  kept_->parts = std::move(parts);
  kept_->cluster = cluster;
  if (!cluster.gpu) return;
  kept_->gpu = gpu_rates(*cluster.gpu);
  kept_->own = gpu_rates(*cluster.gpu, Kernels::own);
}

double TimeModel::peak_flops(models::Precision precision) const {
  Strategy s;
  s.precision = precision;
  return kept_->gpu.peaks[rate_index(execution_of(s).compute)];
}

bool TimeModel::knows(models::Precision precision) const {
  return kept_->gpu.memory > 0 && peak_flops(precision) > 0;
}

const ComputeTime& TimeModel::computes(const Strategy& s) const {
  const Strategy part = computing_part(s);
  Kept& known = *kept_;
  const std::lock_guard lock(known.mutex);
  std::unique_ptr<ComputeTime>& of = known.computes[part];
  if (!of) of = std::make_unique<ComputeTime>(known.parts, known.cluster, known.of(s), part);
  return *of;
}

const FixedTimes& TimeModel::fixed(const Strategy& s) const {
  const Strategy part = fixed_part(s);
  Kept& known = *kept_;
  const std::lock_guard lock(known.mutex);
  const auto found = known.fixed.find(part);
  if (found != known.fixed.end()) return found->second;
  const StackInfo& stack = stack_info(s.stack);
  Messages messages;
  stack.write_messages(known.parts, part, messages);
  models::StepProgram program;
  Works works;
  stack.write_optimizer(known.parts, part, program, works);
  FixedTimes times;
  times.optimizer = optimizer_cost(known.of(s), execution_of(s), optimizer_work(program, works));
  if (std::ranges::any_of(messages, &Message::of_token))
    times.by_batch = std::move(messages);
  else
    times.messages = message_times(s, messages);
  return known.fixed.emplace(part, std::move(times)).first->second;
}

MessageTimes TimeModel::message_times(const Strategy& s, const Messages& messages) const {
  return times_of(messages, copies_, fabric_, models::decisions::mesh_of(s).node,
                  kept_->of(s).memory, message_seconds(s).value);
}

StepTime TimeModel::operator()(const Strategy& s, const Batch& batch) const {
  return StrategyTime(*this, s)(batch);
}

StrategyTime::StrategyTime(const TimeModel& model, const Strategy& s)
    : model_(model), strategy_(s), computes_(model.computes(s)), fixed_(model.fixed(s)) {
  const models::decisions::Mesh mesh = models::decisions::mesh_of(s);
  wait_ = waiting(static_cast<double>(mesh.ranks()), static_cast<double>(mesh.nodes()));
  for (const LayerRun& run : model.kept_->parts.runs)
    for (std::size_t i = 0; i < run.pattern.size(); ++i) host_.push_back(layer_host(run, i, s));
}

StepTime StrategyTime::operator()(const Batch& batch) const {
  const ComputeCost& work = computes_.of(batch);
  check(work.layers.size() == model_.copies_.size(), ErrorKind::internal,
        "the program of one GPU has other layers than the model");
  std::optional<MessageTimes> of_batch;
  if (!fixed_.by_batch.empty())
    of_batch = model_.message_times(strategy_, planner::of_batch(fixed_.by_batch, batch.tokens()));
  const MessageTimes& messages = of_batch ? *of_batch : fixed_.messages;
  Overlap step;
  if (batch.grad_accum > 1)
    add_micro_batches(work, host_, model_.copies_, messages.each,
                      static_cast<double>(batch.grad_accum - 1), step);
  add_micro_batches(work, host_, model_.copies_, messages.once, 1, step);
  step.expose(messages.step);
  StepTime time;
  time.optimizer = fixed_.optimizer.seconds();
  time.compute = step.compute * (1 + wait_);
  time.communication = step.communication;
  time.busy = step.work.busy();
  time.exposed_communication = step.exposed;
  time.step = time.compute + time.exposed_communication + time.optimizer;
  time.limit = limit_of(step, time.optimizer, messages.crosses_nodes);
  return time;
}

}  // namespace plimsoll::planner
