#include "planner/collective_cost.h"

#include <algorithm>

namespace plimsoll::planner {

namespace {

// Of the link's rate, what large messages reach: NCCL tunes its rings to this fraction
// (nccl/src/graph/tuning.cc: NVLink rings of `Simple` keep 0.92 of the search's bandwidth).
constexpr double kLinkFraction = 0.8;

// One step of a ring, seconds (nccl/src/graph/tuning.cc, hwLat of protocol Simple: NVLink 3.4 us,
// PCIe 5.7 us, network 14 us), and the start of a collective (baseLat of Ring/Simple: 8.4 us).
constexpr double kBase = 8.4e-6, kNvlinkStep = 3.4e-6, kPcieStep = 5.7e-6, kNetworkStep = 14e-6;

double ring_bandwidth(const Fabric& f, const Group& g) {
  const double inside = f.intra_node * kLinkFraction;
  if (!g.crosses_nodes()) return inside;
  // A ring enters and leaves a node once, and as many rings as members share the node's links.
  const double across = f.inter_node * kLinkFraction * static_cast<double>(g.in_node);
  return g.in_node > 1 ? std::min(inside, across) : across;
}

double ring_latency(const Fabric& f, const Group& g) {
  const double steps = static_cast<double>(g.ranks - 1);
  const double crossings =
      g.crosses_nodes() ? static_cast<double>(g.ranks) / static_cast<double>(g.in_node) - 1 : 0;
  return crossings * kNetworkStep + (steps - crossings) * (f.nvlink ? kNvlinkStep : kPcieStep);
}

}  // namespace

Fabric fabric_of(const models::ClusterSpec& cluster) {
  Fabric fabric;
  if (!cluster.gpu) return fabric;
  const models::Gpu& gpu = *cluster.gpu;
  fabric.nvlink = gpu.link_bandwidth.has_value();
  fabric.nvls = gpu.vendor == "nvidia" && fabric.nvlink &&
                (gpu.family == "hopper" || gpu.family == "blackwell");
  fabric.intra_node =
      cluster.intra_node_bandwidth.value_or(gpu.link_bandwidth.value_or(gpu.pcie_bandwidth));
  // DGX A100: a 200 Gb/s adapter for each GPU; DGX H100, H200, B200: 400 Gb/s.
  const double adapter = gpu.family == "hopper" || gpu.family == "blackwell" ? 50e9 : 25e9;
  fabric.inter_node = cluster.inter_node_bandwidth.value_or(adapter);
  return fabric;
}

Group group_of(std::int64_t ranks, std::int64_t stride, std::int64_t gpus_per_node) {
  const std::int64_t fit =
      std::max<std::int64_t>(1, gpus_per_node / std::max<std::int64_t>(1, stride));
  return {ranks, std::min(ranks, fit)};
}

double all_gather_seconds(const Fabric& f, const Group& g, double bytes) {
  if (g.ranks <= 1 || bytes <= 0) return 0;
  const double n = static_cast<double>(g.ranks);
  return kBase + ring_latency(f, g) + bytes * (n - 1) / n / ring_bandwidth(f, g);
}

double reduce_scatter_seconds(const Fabric& f, const Group& g, double bytes) {
  return all_gather_seconds(f, g, bytes);
}

double all_reduce_seconds(const Fabric& f, const Group& g, double bytes) {
  if (g.ranks <= 1 || bytes <= 0) return 0;
  const double n = static_cast<double>(g.ranks);
  return kBase + 2 * ring_latency(f, g) + 2 * bytes * (n - 1) / n / ring_bandwidth(f, g);
}

double broadcast_seconds(const Fabric& f, const Group& g, double bytes) {
  if (g.ranks <= 1 || bytes <= 0) return 0;
  return kBase + ring_latency(f, g) + bytes / ring_bandwidth(f, g);
}

}  // namespace plimsoll::planner
