#include "models/optimizer_states.h"

#include <algorithm>

namespace plimsoll::models {

namespace {
constexpr std::array<const char*, kOptimizerStates.size()> kScales{
    "exp_avg.absmax", "exp_avg_sq.absmax", "momentum_buffer.absmax", "exp_avg_sq_row.absmax",
    "exp_avg_sq_col.absmax"};

bool is(Of of, const SteppedTensor& tensor) {
  switch (of) {
    case Of::all:
      return true;
    case Of::matrices:
      return tensor.is_matrix();
    case Of::vectors:
      return !tensor.is_matrix();
    case Of::in_16_bits:
      return tensor.dtype != DType::fp32;
    case Of::in_fp32:
      return tensor.dtype == DType::fp32;
  }
  return false;
}
}  // namespace

const OptimizerRule& rule_for(Optimizer kind, const SteppedTensor& tensor) {
  const OptimizerRule& rule = rule_of(kind);
  const bool takes =
      tensor.hidden && tensor.is_matrix() && tensor.rows * tensor.columns == tensor.elements;
  return rule.rest && !takes ? rule_of(*rule.rest) : rule;
}

Count count_of(Extent extent, Of of, const SteppedTensor& tensor) {
  if (!is(of, tensor)) return Count(0);
  if (extent == Extent::elements) return Count(tensor.elements);
  if (!tensor.is_matrix() || tensor.elements == 0) return Count(0);
  switch (extent) {
    case Extent::rows:
      return Count(tensor.elements / tensor.columns);
    case Extent::columns:
      return Count(tensor.elements / tensor.rows);
    default: {
      const std::int64_t less = std::min(tensor.rows, tensor.columns);
      return Count(checked_multiply(less, less));
    }
  }
}

bool in_blocks(const BlockStates& blocks, const SteppedTensor& tensor) {
  return blocks.block > 0 && tensor.elements >= blocks.least && !tensor.embedding;
}

void KeptStates::merge(const KeptState& state) {
  KeptState* const same = std::find_if(begin(), end(), [&](const KeptState& s) {
    return s.name == state.name && s.managed == state.managed;
  });
  if (same == end())
    add(state);
  else
    same->bytes += state.bytes;
}

KeptStates kept_states(Optimizer kind, const SteppedTensor& tensor) {
  const OptimizerRule& rule = rule_for(kind, tensor);
  const TorchOptimizer& torch = rule.torch;
  const bool blocks = in_blocks(torch.blocks, tensor);
  const DType dtype = blocks ? DType::uint8 : torch.state_dtype.value_or(tensor.dtype);
  KeptStates out;
  for (const StateTensor& state : rule.states) {
    const Count count = count_of(state.extent, state.of, tensor) * state.times;
    const bool managed = torch.paged_from > 0 && tensor.elements >= torch.paged_from;
    if (count > Count(0)) out.add({name_of(state.name), storage(count, dtype), managed});
  }
  if (!blocks) return out;
  const Count scales(ceil_divide(tensor.elements, torch.blocks.block));
  for (const StateTensor& state : rule.states)
    out.add({kScales[static_cast<std::size_t>(state.name)],
             storage(scales * state.times, DType::fp32)});
  return out;
}

}  // namespace plimsoll::models
