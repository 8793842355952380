// Seconds of collectives, by NCCL's own cost model: steps of an algorithm times a latency, and
// bytes over the slowest link that the algorithm crosses.
#pragma once

#include <cstdint>

#include "models/cluster_spec.h"
#include "models/run_spec.h"

namespace plimsoll::planner {

// Links of one GPU, one direction, as the hardware has them.
struct Fabric {
  double intra_node = 0;  // bytes/s
  double inter_node = 0;  // bytes/s
  bool nvlink = false;  // intra-node links are NVLink or xGMI; else PCIe
  bool nvls = false;  // the switch reduces (NVLink SHARP): Hopper and later
};
Fabric fabric_of(const models::ClusterSpec& cluster);

// Ranks that communicate: how many, how many of them in one node. In a node they are neighbours.
struct Group {
  std::int64_t ranks = 1;
  std::int64_t in_node = 1;
  bool crosses_nodes() const { return ranks > in_node; }
};
// `ranks` members, `stride` apart, nodes of `gpus_per_node`.
Group group_of(std::int64_t ranks, std::int64_t stride, std::int64_t gpus_per_node);

// Bytes of the full array.
double all_gather_seconds(const Fabric& fabric, const Group& group, double bytes);
double reduce_scatter_seconds(const Fabric& fabric, const Group& group, double bytes);
double all_reduce_seconds(const Fabric& fabric, const Group& group, double bytes);
double broadcast_seconds(const Fabric& fabric, const Group& group, double bytes);

}  // namespace plimsoll::planner
