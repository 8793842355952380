// Seconds of collectives, by NCCL's own cost model (nccl/src/graph/tuning.cc): the steps of an
// algorithm times a latency, and bytes over the slowest link that it crosses. NCCL takes the
// fastest of its algorithms (ring, tree, NVLS) and protocols; so does this.
#pragma once

#include <cstdint>

#include "models/cluster_spec.h"
#include "models/decisions/mesh.h"
#include "planner/time/gpu_rates.h"

namespace plimsoll::planner {

// Links of one GPU, one direction.
struct Fabric {
  double intra_node = 0, inter_node = 0;  // bytes/s as the hardware has them
  const char* inter_node_source = "";
  Share intra_share, inter_share;  // of them, what large messages reach
  // GPUs of a node that NVLink or xGMI joins: a switch all of them, a bridge two; 1: none. Larger
  // groups go over PCIe.
  std::int64_t linked = 1;
  double pcie = 0;  // bytes/s
  bool mesh = false;  // a link of its own to each of 7 others (xGMI): a pair has a seventh
  bool nvls = false;  // the switch reduces (NVLink SHARP): Hopper and later
};
Fabric fabric_of(const models::ClusterSpec& cluster);

// Ranks that communicate: how many, and how many of them share a node, where they are neighbours.
struct Group {
  std::int64_t ranks = 1;
  std::int64_t in_node = 1;
  bool crosses_nodes() const { return ranks > in_node; }
};
// Of a mesh whose nodes have room for `node` ranks.
constexpr Group group_of(const models::decisions::AxisGroup& group, std::int64_t node) {
  return {group.ranks, group.in_node(node)};
}

// What joins the members within a node: bytes/s of the hardware, and the share that is reached.
struct Link {
  double rate = 0;
  Share share;
};
Link inside_link(const Fabric& fabric, const Group& group);

// `bytes` of the full array. 0 for a group of one and for nothing to send.
double all_gather_seconds(const Fabric& fabric, const Group& group, double bytes);
double reduce_scatter_seconds(const Fabric& fabric, const Group& group, double bytes);
double all_reduce_seconds(const Fabric& fabric, const Group& group, double bytes);
double broadcast_seconds(const Fabric& fabric, const Group& group, double bytes);

}  // namespace plimsoll::planner
