// Which ranks form a group with each other, by what the group divides.
//
// The ranks of a job are a grid with named axes: a group of an axis has `ranks` members, `stride`
// apart. Neighbouring ranks share a shard group, and shard groups are replicas of each other. What
// divides the model (tensor, pipeline, context, expert) is refused by every stack so far; its axes
// have one rank.
#pragma once

#include <array>
#include <cstddef>

#include "models/run_spec.h"

namespace plimsoll::models::decisions {

enum class Axis : std::uint8_t { shard, replicate, tensor, pipeline, context, expert };

struct AxisGroup {
  std::int64_t ranks = 1, stride = 1;
  // Which of the axis' groups the rank is in: counted from 0, in the order of their first ranks.
  constexpr std::int64_t index_of(std::int64_t rank) const {
    return rank / (ranks * stride) * stride + rank % stride;
  }
  bool operator==(const AxisGroup&) const = default;
};

struct Mesh {
  std::array<AxisGroup, 6> axes;
  constexpr const AxisGroup& operator[](Axis axis) const {
    return axes[static_cast<std::size_t>(axis)];
  }
  constexpr bool replicates() const { return (*this)[Axis::replicate].ranks > 1; }
};

// --zero 0 divides nothing: all ranks are replicas.
constexpr Mesh mesh_of(const Strategy& s) {
  const std::int64_t group = s.data.shard_group > 0 ? s.data.shard_group : s.gpus;
  const std::int64_t shards = s.data.zero == 0 ? 1 : group;
  return {{{{.ranks = shards, .stride = 1}, {.ranks = s.gpus / shards, .stride = shards}}}};
}

}  // namespace plimsoll::models::decisions
