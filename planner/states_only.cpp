#include "planner/states_only.h"

#include "models/decisions/mesh.h"
#include "models/lora.h"
#include "models/prompt_adapters.h"
#include "models/trainable.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner {

using models::Strategy;

namespace {

std::int64_t ranks_of(const Strategy& s) {
  return models::decisions::mesh_of(s)[models::decisions::Axis::shard].ranks;
}

Bytes share(Bytes bytes, bool sharded, std::int64_t ranks) {
  return sharded ? Bytes(ceil_divide(bytes.value(), ranks)) : bytes;
}

}  // namespace

reports::States zero_paper_states(Count parameters, const Strategy& s) {
  const std::int64_t n = parameters.value(), ranks = ranks_of(s);
  const Bytes weights = Bytes(is_mixed(s.precision) ? 2 : 4) * n;
  return {.parameters = share(weights, s.data.zero >= 3, ranks),
          .gradients = share(weights, s.data.zero >= 2, ranks),
          .optimizer = share(Bytes(is_mixed(s.precision) ? 12 : 8) * n, s.data.zero >= 1, ranks)};
}

reports::States table_states(const ParameterCounts& counts, const Strategy& s) {
  const TableStates states = stack_info(s.stack).table_states(counts, s);
  const std::int64_t ranks = ranks_of(s);
  const int zero = s.data.zero;
  return {.parameters = share(states.whole.parameters, zero >= states.parameters_from, ranks),
          .gradients = share(states.whole.gradients, zero >= states.gradients_from, ranks),
          .optimizer = share(states.whole.optimizer, zero >= states.optimizer_from, ranks)};
}

ParameterCounts count_parameters(const models::ModelSpec& model, const Strategy& strategy) {
  ParameterCounts counts;
  counts.total = model.parameter_count();
  counts.active = model.active_parameter_count();
  counts.trainable = models::trainable_parameter_count(models::trainable_rows(model, strategy));
  if (strategy.lora) {
    counts.adapters = models::lora_parameter_count(models::lora_modules(model, *strategy.lora)) +
                      models::prompt_parameter_count(model, *strategy.lora);
    counts.total += counts.adapters * strategy.lora->adapters;
    counts.trainable += counts.adapters;
    counts.active += counts.adapters;
    for (const models::ParameterRow& row : model.parameters)  // the frozen originals
      if (models::is_saved(*strategy.lora, row)) counts.total += row.elements();
  }
  return counts;
}

}  // namespace plimsoll::planner
