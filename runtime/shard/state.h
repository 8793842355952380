// What a unit keeps of its parameters between ops.
#pragma once

#include <cstdint>

namespace plimsoll::runtime::shard {

// Projector: bases of what is stepped in a subspace (models/decisions/low_rank.h). Scales: of
// moments in 8 bits, one for each block (models/decisions/optimizer_states.h).
enum class State : std::uint8_t {
  weights,
  masters,
  first_moment,
  second_moment,
  first_scales,
  second_scales,
  projector,
  gradients
};

}  // namespace plimsoll::runtime::shard
