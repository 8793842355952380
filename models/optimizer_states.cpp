#include "models/optimizer_states.h"

#include <algorithm>

namespace plimsoll::models {

namespace {
// What belongs to states in blocks, of those that an optimizer has in blocks.
constexpr const char* scales_of(OptimizerState state) {
  switch (state) {
    case OptimizerState::exp_avg:
      return "exp_avg.absmax";
    case OptimizerState::exp_avg_sq:
      return "exp_avg_sq.absmax";
    case OptimizerState::square_avg:
      return "square_avg.absmax";
    default:
      return "absmax";
  }
}
constexpr const char* table_of(OptimizerState state) {
  return state == OptimizerState::exp_avg ? "exp_avg.qmap" : "exp_avg_sq.qmap";
}

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
    case Of::projected:
      return tensor.rank > 0;
    case Of::projected_in_16_bits:
      return tensor.rank > 0 && tensor.dtype != DType::fp32;
    case Of::projected_in_fp32:
      return tensor.rank > 0 && tensor.dtype == DType::fp32;
    case Of::whole:
      return tensor.rank == 0;
    case Of::in_blocks:
      return tensor.block > 0;
    case Of::in_rows_of_blocks:
      return tensor.block > 0 && tensor.columns % tensor.block == 0;
  }
  return false;
}

bool is_layers_matrix(const SteppedTensor& tensor) {
  return tensor.hidden && tensor.is_matrix() && tensor.rows * tensor.columns == tensor.elements;
}

}  // namespace

std::int64_t rank_of(const Strategy& strategy, const SteppedTensor& tensor) {
  const TorchOptimizer& rule = rule_of(strategy.optimizer).torch;
  if (rule.projects_to == 0 || !is_layers_matrix(tensor)) return 0;
  const std::int64_t asked = strategy.galore_rank > 0 ? strategy.galore_rank : rule.projects_to;
  return std::min({asked, tensor.rows, tensor.columns});
}

bool steps_behind(const Strategy& strategy) {
  return strategy.stack == Stack::pytorch && rule_of(strategy.optimizer).torch.behind;
}

const OptimizerRule& rule_for(Optimizer kind, const SteppedTensor& tensor) {
  const OptimizerRule& rule = rule_of(kind);
  return rule.rest && !is_layers_matrix(tensor) ? rule_of(*rule.rest) : rule;
}

Count count_of(Extent extent, Of of, const SteppedTensor& tensor) {
  if (!is(of, tensor)) return Count(0);
  if (extent == Extent::elements) return Count(tensor.elements);
  if (extent == Extent::one) return Count(1);
  if (extent == Extent::blocks) return Count(ceil_divide(tensor.elements, tensor.block));
  if (!tensor.is_matrix() || tensor.elements == 0) return Count(0);
  switch (extent) {
    case Extent::rows:
      return Count(tensor.elements / tensor.columns);
    case Extent::columns:
      return Count(tensor.elements / tensor.rows);
    default:
      break;
  }
  const std::int64_t less = std::min(tensor.rows, tensor.columns);
  switch (extent) {
    case Extent::lesser:
      return Count(less);
    case Extent::greater:
      return Count(std::max(tensor.rows, tensor.columns));
    case Extent::low_rank:
      return Count(checked_multiply(tensor.rank, std::max(tensor.rows, tensor.columns)));
    case Extent::projector:
      return Count(checked_multiply(tensor.rank, less));
    case Extent::projector_groups:
      return Count(ceil_divide(checked_multiply(tensor.rank, less), kProjectorGroup));
    case Extent::rank_square:
      return Count(checked_multiply(tensor.rank, tensor.rank));
    default:
      return Count(checked_multiply(less, less));
  }
}

bool in_blocks(const BlockStates& blocks, const SteppedTensor& tensor) {
  const std::int64_t elements =
      tensor.rank > 0 ? count_of(Extent::low_rank, Of::all, tensor).value() : tensor.elements;
  return blocks.block > 0 && elements >= blocks.least && (blocks.embeddings || !tensor.embedding) &&
         (!blocks.whole || elements % blocks.block == 0);
}

std::int64_t block_of(const BlockStates& blocks, const Strategy& strategy) {
  const bool older = blocks.block_before > 0 && strategy.bitsandbytes < kBlocksOf256;
  return older ? blocks.block_before : blocks.block;
}

KeptStates kept_states(const Strategy& strategy, const SteppedTensor& tensor) {
  const Optimizer kind = strategy.optimizer;
  const OptimizerRule& rule = rule_for(kind, tensor);
  const TorchOptimizer& torch = rule.torch;
  const bool blocks = in_blocks(torch.blocks, tensor);
  const DType dtype = blocks ? torch.blocks.codes : torch.state_dtype.value_or(tensor.dtype);
  const bool has_limits = rule_of(kind).rest || torch.blocks.block > 0 || torch.paged_from > 0;
  KeptStates out;
  for (const StateTensor& state : rule.states) {
    const Count count = count_of(state.extent, state.of, tensor) * state.times;
    const bool managed = torch.paged_from > 0 && tensor.elements >= torch.paged_from;
    if (count == Count(0)) continue;
    const DType stored = state.dtype.value_or(state.plain ? tensor.dtype : dtype);
    const bool each = !has_limits && state.extent == Extent::elements && state.of == Of::all;
    out.add({name_of(state.name), storage(count, stored), managed,
             each ? state.times * bits(stored) / 8 : 0});
  }
  if (torch.value_of_each != nullptr) out.add({torch.value_of_each, Bytes(4)});
  if (!blocks) return out;
  for (const StateTensor& state : rule.states) {
    const Count values = count_of(state.extent, state.of, tensor);
    if (values == Count(0) || state.plain) continue;
    const Count scales(ceil_divide(values.value(), block_of(torch.blocks, strategy)));
    out.add({scales_of(state.name), storage(scales * state.times, DType::fp32)});
    if (torch.blocks.table_of_each > 0)
      out.add({table_of(state.name), Bytes(torch.blocks.table_of_each)});
  }
  return out;
}

}  // namespace plimsoll::models
