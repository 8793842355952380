#include "runtime/optimizer.h"

#include <cmath>

namespace plimsoll::runtime {

namespace {

// Streams of random numbers below are those of dropout, by layer and site.
constexpr std::uint32_t kRoundingStream = 0xFFFFFFFF;

}  // namespace

int moments_of(models::Optimizer kind) {
  switch (kind) {
    case models::Optimizer::adamw:
      return 2;
    case models::Optimizer::momentum:
      return 1;
    case models::Optimizer::sgd:
      return 0;
    default:
      fail(ErrorKind::unsupported, "--optimizer: this runtime has adamw, sgd and momentum");
  }
}

void take_step(const Worker& worker, const OptimizerStep& step, const OptimizerOperands& operands) {
  const OptimizerOptions& o = step.options;
  kernels::OptimizerTensors tensors;
  tensors.weight = operands.weight;
  tensors.master = operands.master;
  tensors.first_moment = operands.first_moment;
  tensors.second_moment = operands.second_moment;
  tensors.gradient = operands.gradient;
  tensors.factor = step.factor;
  tensors.overflow = step.overflow;
  tensors.first_element = static_cast<std::uint64_t>(operands.first_element);
  tensors.key = {worker.seed, worker.step, kRoundingStream};
  if (o.kind == models::Optimizer::adamw) {
    worker.kernels.adamw(
        tensors, {step.learning_rate, o.beta1, o.beta2, o.eps, o.weight_decay, step.number});
    return;
  }
  const float momentum = moments_of(o.kind) == 1 ? o.momentum : 0;
  worker.kernels.sgd(tensors, {step.learning_rate, momentum, o.weight_decay});
}

LossScaler::LossScaler(bool on, const Options& options)
    : on_(on), options_(options), scale_(on ? options.initial : 1) {}

void LossScaler::update(bool overflow) {
  if (!on_) return;
  if (overflow) {
    scale_ *= options_.backoff;
    good_ = 0;
    return;
  }
  if (++good_ < options_.growth_interval) return;
  good_ = 0;
  // The scale is multiplied in fp32.
  const double grown = scale_ * options_.growth;
  if (std::isfinite(static_cast<float>(grown))) scale_ = grown;
}

void LossScaler::restore(double scale, std::int64_t good_steps) {
  scale_ = on_ ? scale : 1;
  good_ = good_steps;
}

}  // namespace plimsoll::runtime
