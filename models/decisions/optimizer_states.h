// How our own runtime keeps the optimizer's states of a flat part (models/decisions/sharding.h).
//
// An optimizer with states in 8 bits (models/optimizer_rule.h, BlockStates: bitsandbytes' rows)
// keeps a byte for each element and an fp32 scale for each block of 256. Blocks are of the flat
// part: what is padded to equal pieces is padded to whole blocks, so that a shard begins with one
// and every stage makes the same blocks, and the same bits. A part with less elements than the
// row's least keeps fp32, whatever the stage. As bitsandbytes counts where it steps one flat
// parameter (FSDP1), and not as where it steps each tensor: a layer's norms and biases share the
// blocks of its matrices, and the embedding has 8 bits too.
#pragma once

#include <algorithm>
#include <array>
#include <span>

#include "models/decisions/precision.h"
#include "models/decisions/sharding.h"
#include "models/optimizer_rule.h"

namespace plimsoll::models::decisions {

// Of each element; of a matrix that is projected, of its subspace (low_rank.h). In the order of
// their tensors.
struct Moments {
  std::array<OptimizerState, 2> names{};
  std::size_t count = 0;
  constexpr std::span<const OptimizerState> all() const { return std::span(names).first(count); }
};
constexpr Moments moments_of(const OptimizerRule& rule) {
  Moments moments;
  for (const StateTensor& state : rule.states)
    if (state.name != OptimizerState::projector &&
        std::ranges::find(moments.all(), state.name) == moments.all().end())
      moments.names[moments.count++] = state.name;
  return moments;
}

struct StateStorage {
  DType dtype = DType::fp32;
  std::int64_t block = 0;  // elements that share a scale; 0: there are no scales
  std::int64_t scales(std::int64_t elements) const {
    return block == 0 ? 0 : ceil_divide(elements, block);
  }
};
inline constexpr DType kStateScales = DType::fp32;

// `elements`: of the part before it is padded to equal pieces.
constexpr StateStorage state_storage(const OptimizerRule& rule, const TrainedDtypes& dtypes,
                                     std::int64_t elements) {
  const BlockStates& blocks = rule.blocks();
  if (blocks.block == 0) return {dtypes.moments, 0};
  if (elements < blocks.least) return {DType::fp32, 0};
  return {DType::uint8, blocks.block};
}

// Elements that a piece of the part is a multiple of.
constexpr std::int64_t piece_step(DType weight, const StateStorage& states) {
  const std::int64_t aligned = alignment_elements(weight);
  return states.block > aligned ? states.block : aligned;
}

}  // namespace plimsoll::models::decisions
