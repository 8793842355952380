#include "planner/time/collective_cost.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace plimsoll::planner {

namespace {

// One protocol of rings: seconds to start (baseLat), of a step over each kind of link (hwLat), and
// the share of the links' rate that is left for data. NVIDIA/nccl @b647562, src/graph/tuning.cc,
// where LL and LL128 exist for small messages; LL128 needs NVLink.
struct Protocol {
  double base, nvlink, pcie, network, share;
};
constexpr Protocol kLow{6.6e-6, 0.6e-6, 1.0e-6, 2.7e-6, 0.25};
constexpr Protocol kLow128{14.0e-6, 1.9e-6, 2.5e-6, 4.0e-6, 0.92};
constexpr Protocol kSimple{8.4e-6, 3.4e-6, 5.7e-6, 14.0e-6, 1.0};
// Tree, protocols LL128 and Simple: 0.92 of the rate, 0.85 more where it is a tree of nodes.
constexpr Protocol kTree128{14.0e-6, 1.25e-6, 1.9e-6, 8.5e-6, 0.92 * 0.85 * 0.94};
constexpr Protocol kTreeSimple{0, 28e-6, 28e-6, 28e-6, 0.92 * 0.85};

// NVLS all-reduce: each rank's array over its link at this share of the rate, after this long.
// Fitted to the sweep of 8 H200, 4 MiB to 16 GiB (275.6 of 450 GB/s): stas00/ml-engineering,
// network/benchmarks/results/all-reduce-8xH200.md.
constexpr double kNvlsShare = 0.612, kNvlsStart = 70e-6;

// GeForce cards are not peers: NCCL stages messages through the host's memory, both ways over the
// same bus. All-reduce over 8 and 4 RTX 5090 reaches 28 and 35 of 64 GB/s.
constexpr Share kPcieShare{0.5, "published", "NVIDIA/nccl issue 1639: 0.44 and 0.55 of PCIe 5.0"};

bool joined(const Fabric& f, const Group& g) {
  return g.in_node <= f.linked;
}

double inside_rate(const Fabric& f, const Group& g) {
  const Link link = inside_link(f, g);
  return link.rate * link.share.value;
}

// A message in pieces of the array over a ring: `rounds` 1 for a gather or a scatter, 2 for both.
double ring_seconds(const Fabric& f, const Group& g, double bytes, double rounds,
                    const Protocol& p) {
  const double n = static_cast<double>(g.ranks), inside = inside_rate(f, g);
  double rate = inside, crossings = 0;
  if (g.crosses_nodes()) {
    const double members = static_cast<double>(g.in_node);
    // A ring enters and leaves a node once; as many rings as members share its adapters.
    const double across = f.inter_node * f.inter_share.value * members;
    rate = g.in_node > 1 ? std::min(inside, across) : across;
    crossings = n / members - 1;
  }
  const double step = joined(f, g) ? p.nvlink : p.pcie;
  const double latency = crossings * p.network + (n - 1 - crossings) * step;
  return p.base + rounds * (latency + bytes * (n - 1) / n / (rate * p.share));
}

double rings(const Fabric& f, const Group& g, double bytes, double rounds) {
  const double best =
      std::min(ring_seconds(f, g, bytes, rounds, kLow), ring_seconds(f, g, bytes, rounds, kSimple));
  return joined(f, g) ? std::min(best, ring_seconds(f, g, bytes, rounds, kLow128)) : best;
}

// Up and down a tree of nodes; inside a node a chain.
double tree_seconds(const Fabric& f, const Group& g, double bytes, const Protocol& p) {
  const double members = static_cast<double>(g.in_node);
  const auto nodes = static_cast<std::uint64_t>(g.ranks / g.in_node);
  const double depth = static_cast<double>(std::bit_width(nodes) - 1);
  const double across = f.inter_node * f.inter_share.value * members;
  const double inside = inside_rate(f, g);
  const double rate = g.in_node > 1 ? std::min(inside, across) : across;
  const double latency = (members - 1) * (joined(f, g) ? p.nvlink : p.pcie) + depth * p.network;
  return p.base + 2 * (latency + bytes / (rate * p.share));
}

Share link_share(const models::Gpu& gpu) {
  constexpr const char* rings = "stas00/ml-engineering, network: all-reduce on one node";
  if (!gpu.link_bandwidth) return kPcieShare;
  if (gpu.family == "hopper") return {0.817, "published", rings};  // 367.61 of 450 GB/s, no SHARP
  if (gpu.name == "mi300x") return {0.698, "published", rings};  // 312.9 of 448 GB/s
  if (gpu.name.starts_with("a100"))  // 235 of 300 GB/s
    return {0.783, "published",
            "NVIDIA/nccl @01afd20, src/graph/tuning.cc: at most 235 GB/s on A100"};
  return {0.8, "assumed", "as A100 and H100"};
}

// Servers with a switch or a mesh join all; PCIe cards have a bridge for two, the H200 NVL for four
// (NVIDIA's data sheets).
std::int64_t linked_gpus(const models::Gpu& gpu) {
  constexpr std::int64_t all = std::numeric_limits<std::int64_t>::max();
  if (!gpu.link_bandwidth) return 1;
  if (gpu.vendor == "amd" || gpu.family == "volta" || gpu.family == "blackwell") return all;
  for (const char* server :
       {"a100-sxm", "a800-sxm", "h100-sxm", "h800-sxm", "h20-sxm", "h200-sxm", "gh200"})
    if (gpu.name.starts_with(server)) return all;
  return gpu.name.starts_with("h200-nvl") ? 4 : 2;
}

struct Adapter {
  double rate;
  const char* source;
};

// What the vendor's own servers have beside each GPU.
Adapter adapter_of(const models::Gpu& gpu) {
  if (gpu.family == "volta") return {6.25e9, "NVIDIA DGX-1: four 100 Gb/s adapters for 8 GPUs"};
  if (gpu.name.starts_with("a100") || gpu.name.starts_with("a800"))
    return {25e9, "NVIDIA DGX A100: a 200 Gb/s adapter for each GPU"};
  if (gpu.name.starts_with("b300") || gpu.name.starts_with("gb300"))
    return {100e9, "NVIDIA DGX B300: an 800 Gb/s adapter for each GPU"};
  if (gpu.family == "hopper" || gpu.family == "blackwell")
    return {50e9, "NVIDIA DGX H100, DGX B200: a 400 Gb/s adapter for each GPU"};
  if (gpu.family == "cdna3" || gpu.family == "cdna4")
    return {50e9, "AMD MI300X reference cluster: a 400 Gb/s adapter for each GPU"};
  return {12.5e9 / 8, "one 100 Gb/s adapter for 8 GPUs; --inter-node-bandwidth says better"};
}

}  // namespace

Link inside_link(const Fabric& f, const Group& g) {
  if (!joined(f, g)) return {f.pcie, kPcieShare};
  const double part = f.mesh ? static_cast<double>(g.in_node - 1) / 7 : 1;
  return {f.intra_node * std::min(1.0, part), f.intra_share};
}

Fabric fabric_of(const models::ClusterSpec& cluster) {
  Fabric fabric;
  if (!cluster.gpu) return fabric;
  const models::Gpu& gpu = *cluster.gpu;
  fabric.linked = linked_gpus(gpu);
  // Where GPU and host share one memory, and nothing else is said: the memory.
  fabric.pcie = gpu.pcie_bandwidth > 0 ? gpu.pcie_bandwidth : gpu.memory_bandwidth;
  fabric.intra_node = gpu.link_bandwidth.value_or(fabric.pcie);
  fabric.intra_share = link_share(gpu);
  fabric.mesh = gpu.vendor == "amd";
  if (cluster.intra_node_bandwidth) {  // as if a switch joined all
    fabric.intra_node = *cluster.intra_node_bandwidth;
    fabric.linked = std::numeric_limits<std::int64_t>::max();
    fabric.mesh = false;
  }
  fabric.nvls = gpu.vendor == "nvidia" && fabric.linked > 4 &&
                (gpu.family == "hopper" || gpu.family == "blackwell");
  const Adapter adapter = adapter_of(gpu);
  fabric.inter_node = cluster.inter_node_bandwidth.value_or(adapter.rate);
  fabric.inter_node_source = adapter.source;
  fabric.inter_share = {0.9, "published",
                        "calculon, arXiv 2310.01966, systems/a100_80g.json: the outer network"};
  return fabric;
}

double all_gather_seconds(const Fabric& f, const Group& g, double bytes) {
  return g.ranks <= 1 || bytes <= 0 ? 0 : rings(f, g, bytes, 1);
}

double reduce_scatter_seconds(const Fabric& f, const Group& g, double bytes) {
  return all_gather_seconds(f, g, bytes);
}

double all_reduce_seconds(const Fabric& f, const Group& g, double bytes) {
  if (g.ranks <= 1 || bytes <= 0) return 0;
  double best = rings(f, g, bytes, 2);
  if (g.crosses_nodes()) {
    best = std::min(best, tree_seconds(f, g, bytes, kTreeSimple));
    if (joined(f, g)) best = std::min(best, tree_seconds(f, g, bytes, kTree128));
  } else if (f.nvls && joined(f, g) && g.ranks > 2) {
    best = std::min(best, kNvlsStart + bytes / (f.intra_node * kNvlsShare));
  }
  return best;
}

// A chain through all ranks, in pieces: as long as one array over the slowest link.
double broadcast_seconds(const Fabric& f, const Group& g, double bytes) {
  if (g.ranks <= 1 || bytes <= 0) return 0;
  const double n = static_cast<double>(g.ranks);
  return rings(f, g, bytes * n / (n - 1), 1);
}

}  // namespace plimsoll::planner
