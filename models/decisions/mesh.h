// Which ranks form a group with each other, by what the group divides: the one place that says how
// many ranks share, replicate, see other rows or sit in a node.
//
// The ranks of a job are a grid with named axes: a group of an axis has `ranks` members, `stride`
// apart. Axes stand innermost first, so that those that talk most are neighbours in a node. The
// order is that of Megatron-LM (megatron/core/parallel_state.py, initialize_model_parallel: "tp-cp-
// ep-dp-pp", the first has stride 1) and of torchtitan's init_device_mesh (parallel_dims.py: pp,
// dp_replicate, dp_shard, cp, tp, the last has stride 1); Megatron's dp is two axes here, as FSDP's
// hybrid shard is (torch/distributed/fsdp: ("replicate", "shard")). Experts borrow their ranks from
// those of data in both: a pass that places them says so here. What else divides the model
// (context, expert, pipeline) is refused by every stack so far; its axes have one rank.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "models/run_spec.h"

namespace plimsoll::models::decisions {

enum class Axis : std::uint8_t { tensor, context, expert, shard, replicate, pipeline };
inline constexpr std::size_t kAxes = 6;

struct AxisGroup {
  std::int64_t ranks = 1, stride = 1;
  // Which of the axis' groups the rank is in: counted from 0, in the order of their first ranks.
  constexpr std::int64_t index_of(std::int64_t rank) const {
    return rank / (ranks * stride) * stride + rank % stride;
  }
  // Members that share a node of so many neighbouring ranks.
  constexpr std::int64_t in_node(std::int64_t node) const {
    return std::min(ranks, std::max<std::int64_t>(1, node / stride));
  }
  bool operator==(const AxisGroup&) const = default;
};

struct Mesh {
  std::array<AxisGroup, kAxes> axes;
  std::int64_t node = 8;  // ranks that a node has room for

  constexpr const AxisGroup& operator[](Axis axis) const {
    return axes[static_cast<std::size_t>(axis)];
  }
  // Of the job.
  constexpr AxisGroup all() const {
    const AxisGroup& outermost = axes.back();
    return {.ranks = outermost.ranks * outermost.stride, .stride = 1};
  }
  constexpr std::int64_t ranks() const { return all().ranks; }
  constexpr bool communicates() const { return ranks() > 1; }
  // Ranks that see other rows, whether or not they share what ZeRO divides: they sum gradients.
  constexpr AxisGroup data() const {
    const AxisGroup& shard = (*this)[Axis::shard];
    return {.ranks = shard.ranks * (*this)[Axis::replicate].ranks, .stride = shard.stride};
  }
  constexpr bool shards() const { return (*this)[Axis::shard].ranks > 1; }
  constexpr bool divides_layers() const { return (*this)[Axis::tensor].ranks > 1; }
  constexpr bool replicates() const { return (*this)[Axis::replicate].ranks > 1; }

  constexpr std::int64_t ranks_in_node() const { return all().in_node(node); }
  constexpr std::int64_t nodes() const { return ceil_divide(ranks(), node); }
  constexpr bool crosses_nodes() const { return ranks() > node; }
};

// Of so many ranks on each axis, in the order of Axis; strides follow.
constexpr Mesh mesh_of(const std::array<std::int64_t, kAxes>& ranks, std::int64_t node) {
  Mesh mesh{.axes = {}, .node = node};
  std::int64_t stride = 1;
  for (std::size_t axis = 0; axis < kAxes; ++axis) {
    mesh.axes[axis] = {.ranks = ranks[axis], .stride = stride};
    stride *= ranks[axis];
  }
  return mesh;
}

// Ranks that see other rows than each other.
constexpr std::int64_t data_ranks(const Strategy& s) {
  return s.gpus % s.tp == 0 ? s.gpus / s.tp : s.gpus;
}

// --zero 0 divides nothing: all ranks of data are replicas. A --tp that does not divide the ranks,
// or a --shard-group that does not divide those of data, is refused elsewhere, and taken as none
// here.
constexpr Mesh mesh_of(const Strategy& s) {
  const std::int64_t data = data_ranks(s);
  const bool divides = s.data.shard_group > 0 && data % s.data.shard_group == 0;
  const std::int64_t group = divides ? s.data.shard_group : data;
  const std::int64_t shards = s.data.zero == 0 ? 1 : group;
  return mesh_of({s.gpus / data, 1, 1, shards, data / shards, 1}, s.gpus_per_node);
}

// Shards inside groups that are replicas of each other (hybrid).
constexpr bool shards_in_groups(const Strategy& s) {
  return s.data.zero > 0 && mesh_of(s).replicates();
}

}  // namespace plimsoll::models::decisions
