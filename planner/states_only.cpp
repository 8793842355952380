#include "planner/states_only.h"

#include "models/lora.h"
#include "models/optimizers.h"
#include "models/trainable.h"
#include "planner/stacks/pytorch/regime.h"

namespace plimsoll::planner {

using models::Precision;
using models::Strategy;

namespace {

std::int64_t ranks_of(const Strategy& s) {
  return s.data.shard_group > 0 ? s.data.shard_group : s.gpus;
}

Bytes share(Bytes bytes, bool sharded, std::int64_t ranks) {
  return sharded ? Bytes(ceil_divide(bytes.value(), ranks)) : bytes;
}

// States of an optimizer, in copies of the parameter.
std::int64_t optimizer_copies(models::Optimizer optimizer) {
  return static_cast<std::int64_t>(models::rule_of(optimizer).states.size());
}

}  // namespace

reports::States zero_paper_states(Count parameters, const Strategy& s) {
  const std::int64_t n = parameters.value(), ranks = ranks_of(s);
  const Bytes weights = Bytes(is_mixed(s.precision) ? 2 : 4) * n;
  return {.parameters = share(weights, s.data.zero >= 3, ranks),
          .gradients = share(weights, s.data.zero >= 2, ranks),
          .optimizer = share(Bytes(is_mixed(s.precision) ? 12 : 8) * n, s.data.zero >= 1, ranks)};
}

reports::States table_states(Count parameters, Count trainable, Count adapters, const Strategy& s) {
  const std::int64_t ranks = ranks_of(s);
  const int zero = s.data.zero;
  const DType adapter = s.lora ? s.lora->dtype : DType::fp32;
  const Count base_trained = trainable - adapters;
  if (s.stack == models::Stack::plimsoll) {
    // Mixed: 16-bit weights and gradients, fp32 master and moments; pure: everything in one dtype.
    const bool mixed = is_mixed(s.precision);
    const DType weight = s.precision == Precision::fp32 ? DType::fp32 : DType::bf16;
    const Bytes gradients = storage(base_trained, weight) + storage(adapters, adapter);
    const Bytes one = storage(trainable, mixed ? DType::fp32 : weight);
    return {.parameters = share(storage(parameters - adapters, weight) + storage(adapters, adapter),
                                zero >= 3, ranks),
            .gradients = share(gradients, zero >= 2, ranks),
            .optimizer =
                share(one * (optimizer_copies(s.optimizer) + (mixed ? 1 : 0)), zero >= 1, ranks)};
  }
  const bool sharded = zero >= 2;
  const DType stored = pytorch::regime_of(s, sharded, false, false).stored;
  const DType frozen = s.param_dtype.value_or(stored);
  const Bytes trained = storage(base_trained, stored) + storage(adapters, adapter);
  return {.parameters = share(trained + storage(parameters - trainable, frozen), sharded, ranks),
          .gradients = share(trained, sharded, ranks),
          .optimizer = share(trained * optimizer_copies(s.optimizer), zero >= 1, ranks)};
}

ParameterCounts count_parameters(const models::ModelSpec& model, const Strategy& strategy) {
  ParameterCounts counts;
  counts.total = model.parameter_count();
  counts.active = model.active_parameter_count();
  counts.trainable = models::trainable_parameter_count(models::trainable_rows(model, strategy));
  if (strategy.lora) {
    counts.adapters = models::lora_parameter_count(models::lora_modules(model, *strategy.lora));
    counts.total += counts.adapters;
    counts.trainable += counts.adapters;
    counts.active += counts.adapters;
  }
  return counts;
}

}  // namespace plimsoll::planner
