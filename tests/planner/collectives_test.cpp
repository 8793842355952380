// Seconds of collectives by NCCL's algorithms, by hand, and what joins the GPUs of each kind.
#include "planner/time/collective_cost.h"

#include <doctest/doctest.h>

#include <string>

#include "models/gpu_catalog.h"
#include "tests/near.h"

using namespace plimsoll;
using planner::Fabric;
using planner::Group;

namespace {

constexpr double kGiB = 1073741824;

models::ClusterSpec cluster_of(const char* gpu) {
  models::ClusterSpec cluster;
  cluster.gpu = models::find_gpu(gpu);
  return cluster;
}
Fabric fabric(const char* gpu) {
  return planner::fabric_of(cluster_of(gpu));
}

}  // namespace

TEST_CASE("each kind of GPU is joined as its servers join it") {
  struct Row {
    const char* gpu;
    std::int64_t linked;  // 0: all
    double inside, share, across;  // GB/s of the links, what is reached, the node's adapter
    bool nvls, mesh;
  };
  for (const Row& row : {Row{"v100-sxm-16gb", 0, 150, 0.8, 6.25, false, false},
                         {"a100-sxm-80gb", 0, 300, 0.783, 25, false, false},
                         {"a100-pcie-80gb", 2, 300, 0.783, 25, false, false},
                         {"a800-sxm-80gb", 0, 200, 0.8, 25, false, false},
                         {"a30", 2, 100, 0.8, 1.5625, false, false},
                         {"rtx-3090", 2, 56.25, 0.8, 1.5625, false, false},
                         {"l4", 1, 32, 0.5, 1.5625, false, false},
                         {"rtx-4090", 1, 32, 0.5, 1.5625, false, false},
                         {"rtx-5090", 1, 64, 0.5, 1.5625, false, false},
                         {"h100-sxm-80gb", 0, 450, 0.817, 50, true, false},
                         {"h100-pcie-80gb", 2, 300, 0.817, 50, false, false},
                         {"h800-sxm-80gb", 0, 200, 0.817, 50, true, false},
                         {"h20-sxm-96gb", 0, 450, 0.817, 50, true, false},
                         {"h200-sxm-141gb", 0, 450, 0.817, 50, true, false},
                         {"h200-nvl-141gb", 4, 450, 0.817, 50, false, false},
                         {"gh200-96gb", 0, 450, 0.817, 50, true, false},
                         {"b200-sxm-180gb", 0, 900, 0.8, 50, true, false},
                         {"b300-sxm-288gb", 0, 900, 0.8, 100, true, false},
                         {"gb300-288gb", 0, 900, 0.8, 100, true, false},
                         {"mi300x", 0, 448, 0.698, 50, false, true},
                         {"mi355x", 0, 537.6, 0.8, 50, false, true}}) {
    CAPTURE(row.gpu);
    const Fabric f = fabric(row.gpu);
    if (row.linked == 0)
      CHECK(f.linked > 1'000'000);
    else
      CHECK(f.linked == row.linked);
    CHECK(tests::near(f.intra_node / 1e9, row.inside, 1e-12));
    CHECK(f.intra_share.value == row.share);
    CHECK(tests::near(f.inter_node / 1e9, row.across, 1e-12));
    CHECK(f.inter_share.value == 0.9);
    CHECK(f.nvls == row.nvls);
    CHECK(f.mesh == row.mesh);
  }
  CHECK(planner::fabric_of({}).intra_node == 0);
}

TEST_CASE("a bandwidth that is given is a switch's") {
  models::ClusterSpec given = cluster_of("mi300x");
  given.intra_node_bandwidth = 100e9;
  given.inter_node_bandwidth = 3e9;
  const Fabric f = planner::fabric_of(given);
  CHECK_FALSE(f.mesh);
  CHECK(planner::inside_link(f, {2, 2}).rate == 100e9);
  CHECK(planner::inside_link(f, {8, 8}).rate == 100e9);
  CHECK(f.inter_node == 3e9);
  models::ClusterSpec cards = cluster_of("rtx-4090");
  cards.intra_node_bandwidth = 40e9;
  CHECK(planner::inside_link(planner::fabric_of(cards), {8, 8}).rate == 40e9);
  CHECK_FALSE(planner::fabric_of(cards).nvls);
}

// A mesh: each of seven others over a link of its own, 64 of 448 GB/s.
TEST_CASE("in a mesh a group has the links between its members alone") {
  const Fabric f = fabric("mi300x");
  CHECK(tests::near(planner::inside_link(f, {2, 2}).rate, 64e9, 1e-12));
  CHECK(tests::near(planner::inside_link(f, {4, 4}).rate, 192e9, 1e-12));
  CHECK(tests::near(planner::inside_link(f, {8, 8}).rate, 448e9, 1e-12));
  CHECK(tests::near(planner::inside_link(f, {16, 16}).rate, 448e9, 1e-12));
}

// Over NVLink 8 H100 reach 0.817 of 450 GB/s, 367.65; 7/8 of the array goes over each link.
TEST_CASE("a ring takes the protocol that is fastest for the message") {
  const Fabric f = fabric("h100-sxm-80gb");
  const Group node{8, 8};
  const double link = 0.817 * 450e9;
  // LL, 1 MiB: 6.6 us + 7 steps of 0.6 us, a quarter of the rate.
  CHECK(tests::near(planner::all_gather_seconds(f, node, 1048576),
                    10.8e-6 + 0.875 * 1048576 / (link / 4), 1e-9));
  // LL128, 4 MiB: 14 us + 7 of 1.9 us, 0.92 of it.
  CHECK(tests::near(planner::all_gather_seconds(f, node, 4194304),
                    27.3e-6 + 0.875 * 4194304 / (link * 0.92), 1e-9));
  // Simple, 64 MiB: 8.4 us + 7 of 3.4 us.
  CHECK(tests::near(planner::all_gather_seconds(f, node, 67108864),
                    32.2e-6 + 0.875 * 67108864 / link, 1e-9));
  CHECK(planner::reduce_scatter_seconds(f, node, 4194304) ==
        planner::all_gather_seconds(f, node, 4194304));
  // Over PCIe 4.0, half of 32 GB/s, four L4: no LL128, which would take 28 us for 120,000 bytes.
  const Fabric cards = fabric("l4");
  CHECK(tests::near(planner::all_gather_seconds(cards, {4, 4}, 120000),
                    8.4e-6 + 3 * 5.7e-6 + 0.75 * 120000 / 16e9, 1e-9));
  CHECK(tests::near(planner::all_gather_seconds(cards, {4, 4}, 1024),
                    6.6e-6 + 3 * 1.0e-6 + 0.75 * 1024 / 4e9, 1e-9));
}

TEST_CASE("an all-reduce goes around twice, or through the switch that reduces, or up a tree") {
  // No switch that reduces: two rounds of 7 steps of 3.4 us, 0.783 of 300 GB/s.
  CHECK(tests::near(planner::all_reduce_seconds(fabric("a100-sxm-80gb"), {8, 8}, kGiB),
                    8.4e-6 + 2 * (7 * 3.4e-6 + 0.875 * kGiB / (0.783 * 300e9)), 1e-9));
  // Four GPUs behind a bridge have none either.
  CHECK(tests::near(planner::all_reduce_seconds(fabric("h200-nvl-141gb"), {4, 4}, kGiB),
                    8.4e-6 + 2 * (3 * 3.4e-6 + 0.75 * kGiB / (0.817 * 450e9)), 1e-9));
  CHECK(tests::near(planner::all_reduce_seconds(fabric("h100-sxm-80gb"), {4, 4}, kGiB),
                    70e-6 + kGiB / (0.612 * 450e9), 1e-9));
  // 8 nodes of 8 A100. 1 KiB by a tree in LL128: 14 us, twice a chain of 7 x 1.25 us in the node
  // and three levels of 8.5 us; 8 adapters of 25 GB/s, 0.9 of them.
  const Fabric a100 = fabric("a100-sxm-80gb");
  CHECK(tests::near(planner::all_reduce_seconds(a100, {64, 8}, 1024),
                    14e-6 + 2 * (7 * 1.25e-6 + 3 * 8.5e-6 + 1024 / (180e9 * 0.92 * 0.85 * 0.94)),
                    1e-9));
  // Twelve nodes: three levels still, which NCCL rounds down.
  CHECK(planner::all_reduce_seconds(a100, {96, 8}, 1024) ==
        planner::all_reduce_seconds(a100, {64, 8}, 1024));
  CHECK(tests::near(planner::all_reduce_seconds(a100, {128, 8}, 1024) -
                        planner::all_reduce_seconds(a100, {64, 8}, 1024),
                    2 * 8.5e-6, 1e-6));
  // 1 GiB around a ring: 7 crossings of 14 us, 56 steps of 3.4 us, twice 63/64 of the array.
  CHECK(tests::near(planner::all_reduce_seconds(a100, {64, 8}, kGiB),
                    8.4e-6 + 2 * (7 * 14e-6 + 56 * 3.4e-6 + kGiB * 63 / 64 / 180e9), 1e-9));
}

// 64 nodes of eight L4: 28 us for each step in a node and each of six levels, 0.92 · 0.85 of a
// node's adapter of 12.5 GB/s at 0.9.
TEST_CASE("GPUs without links reduce up a tree by its simple protocol") {
  const Fabric cards = fabric("l4");
  const Group nodes{512, 8};
  const double adapters = 12.5e9 * 0.9;
  const double tree = 2 * (7 * 28e-6 + 6 * 28e-6 + 1048576 / (adapters * 0.92 * 0.85));
  CHECK(tests::near(planner::all_reduce_seconds(cards, nodes, 1048576), tree, 1e-9));
}

TEST_CASE("a broadcast is a chain: the array once over the slowest link") {
  CHECK(tests::near(planner::broadcast_seconds(fabric("a100-sxm-80gb"), {8, 8}, kGiB),
                    8.4e-6 + 7 * 3.4e-6 + kGiB / (0.783 * 300e9), 1e-9));
}

TEST_CASE("who is alone, or has nothing to send, sends nothing") {
  const Fabric f = fabric("h100-sxm-80gb");
  for (const auto& seconds : {planner::all_gather_seconds, planner::reduce_scatter_seconds,
                              planner::all_reduce_seconds, planner::broadcast_seconds}) {
    CHECK(seconds(f, {1, 1}, 1024) == 0);
    CHECK(seconds(f, {8, 8}, 0) == 0);
    CHECK(seconds(f, {2, 2}, 1) > 0);
  }
}
