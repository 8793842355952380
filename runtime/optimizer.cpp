#include "runtime/optimizer.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

namespace plimsoll::runtime {

namespace {

// Streams of random numbers below are those of dropout, by layer and site.
constexpr std::uint32_t kRoundingStream = 0xFFFFFFFF;

using Launch = void (*)(const kernels::KernelTable& kernels,
                        const kernels::OptimizerTensors& tensors, const OptimizerStep& step,
                        const models::OptimizerRule& rule);

void adamw(const kernels::KernelTable& kernels, const kernels::OptimizerTensors& tensors,
           const OptimizerStep& step, const models::OptimizerRule& rule) {
  const OptimizerOptions& o = step.options;
  kernels.adamw(tensors, {step.learning_rate, o.beta1.value_or(rule.beta1),
                          o.beta2.value_or(rule.beta2), o.eps, o.weight_decay, step.number});
}

void sgd(const kernels::KernelTable& kernels, const kernels::OptimizerTensors& tensors,
         const OptimizerStep& step, const models::OptimizerRule& rule) {
  const OptimizerOptions& o = step.options;
  const float momentum = rule.states.empty() ? 0 : o.momentum;
  kernels.sgd(tensors, {step.learning_rate, momentum, o.weight_decay});
}

void lion(const kernels::KernelTable& kernels, const kernels::OptimizerTensors& tensors,
          const OptimizerStep& step, const models::OptimizerRule& rule) {
  const OptimizerOptions& o = step.options;
  kernels.lion(tensors, {step.learning_rate, o.beta1.value_or(rule.beta1),
                         o.beta2.value_or(rule.beta2), o.weight_decay});
}

struct Kernel {
  models::Optimizer kind;
  Launch launch;
};
constexpr Kernel kKernels[] = {
    {models::Optimizer::adamw, adamw},  {models::Optimizer::sgd, sgd},
    {models::Optimizer::momentum, sgd}, {models::Optimizer::adam8bit, adamw},
    {models::Optimizer::lion, lion},    {models::Optimizer::lion8bit, lion},
    {models::Optimizer::galore, adamw}};  // of a subspace, or of what is not projected

const Kernel* kernel_of(models::Optimizer kind) {
  const Kernel* found = std::ranges::find(kKernels, kind, &Kernel::kind);
  return found == std::end(kKernels) ? nullptr : found;
}

}  // namespace

const models::OptimizerRule& runtime_rule(models::Optimizer kind) {
  const models::OptimizerRule& rule = models::rule_of(kind);
  check(rule.in_runtime && kernel_of(kind) != nullptr, ErrorKind::unsupported, [&] {
    return "--optimizer " + std::string(rule.name) + ": this runtime has " +
           models::optimizer_names([](const models::OptimizerRule& r) { return r.in_runtime; });
  });
  return rule;
}

void take_step(const Worker& worker, const kernels::KernelTable& kernels, const OptimizerStep& step,
               const OptimizerOperands& operands) {
  kernels::OptimizerTensors tensors;
  tensors.weight = operands.weight;
  tensors.master = operands.master;
  tensors.first_moment = operands.first_moment;
  tensors.second_moment = operands.second_moment;
  tensors.first_scales = operands.first_scales;
  tensors.second_scales = operands.second_scales;
  tensors.gradient = operands.gradient;
  tensors.factor = step.factor;
  tensors.overflow = step.overflow;
  tensors.first_element = static_cast<std::uint64_t>(operands.first_element);
  tensors.key = {worker.seed, worker.step, kRoundingStream};
  const models::OptimizerRule& rule = runtime_rule(step.options.kind);
  kernel_of(rule.kind)->launch(kernels, tensors, step, rule);
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
