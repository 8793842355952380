#include "planner/time/step_time.h"

#include <doctest/doctest.h>

#include <utility>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "tests/near.h"

using namespace plimsoll;
using planner::StepTime;

namespace {

struct Case {
  const char* model = "llama-3.1-8b";
  const char* gpu = "h100-sxm-80gb";
  models::Strategy strategy;
  models::Batch batch{.seq_len = 4096};
  models::ClusterSpec cluster;

  StepTime time() {
    cluster.gpu = models::find_gpu(gpu);
    const models::ModelSpec spec = models::catalog_model(model);
    return planner::TimeModel(planner::model_parts(spec, strategy), cluster)(strategy, batch);
  }
};

Case on(std::int64_t gpus, int zero) {
  Case c;
  c.strategy.gpus = gpus;
  c.strategy.data.zero = zero;
  return c;
}

}  // namespace

TEST_CASE("the parts of a step's time add up to the step") {
  for (const int zero : {0, 1, 2, 3}) {
    const StepTime time = on(16, zero).time();
    CHECK(tests::near(
        time.step,
        time.compute + time.exposed_communication + time.pipeline_bubble + time.optimizer, 1e-12));
    CHECK(time.communication >= time.exposed_communication);
    CHECK(time.exposed_communication > 0);
    CHECK(time.optimizer > 0);
  }
}

// Llama 3 8B of 32 layers on 2 x 2 GPUs of a node: forward two gathers and two scatters a layer, a
// scatter and a gather at the ends; backward as many the other way round. Of a token 4096 values in
// bf16; three all-reduces of one value in fp32. What FSDP sends is the same for every batch.
TEST_CASE("what ranks send that share sequences grows with the batch, and nothing hides it") {
  Case c = on(4, 3);
  c.model = "llama-3-8b";
  c.strategy.code = models::ModelCode::torchtitan_0_2_2;
  c.strategy.tp = 2;
  const StepTime one = c.time();
  c.batch.micro_batch = 2;
  const StepTime two = c.time();
  const planner::Fabric fabric = planner::fabric_of(c.cluster);
  const planner::Group pair{.ranks = 2, .in_node = 2};
  const auto seconds = [&](double tokens) {
    const double array = tokens * 4096 * 2;
    return (32 * 4 + 2) * (planner::all_gather_seconds(fabric, pair, array) +
                           planner::reduce_scatter_seconds(fabric, pair, array)) +
           3 * planner::all_reduce_seconds(fabric, pair, tokens * 4);
  };
  CHECK(tests::near(two.communication - one.communication, seconds(8192) - seconds(4096), 1e-9));
  CHECK(one.exposed_communication > seconds(4096));
}

TEST_CASE("more bandwidth between nodes never makes a step slower") {
  for (const int zero : {0, 1, 2, 3}) {
    double before = 0;
    for (const double rate : {400e9, 100e9, 50e9, 25e9, 12.5e9, 1e9}) {
      Case c = on(64, zero);
      c.cluster.inter_node_bandwidth = rate;
      const double seconds = c.time().step;
      CHECK(seconds >= before);
      before = seconds;
    }
  }
}

TEST_CASE("an unknown GPU, and GEMMs that a GPU has no units for, have no time") {
  const models::ModelSpec spec = models::catalog_model("gpt2");
  const planner::ModelParts parts = planner::model_parts(spec, {});
  CHECK_FALSE(planner::TimeModel(parts, {}).knows(models::Precision::bf16_mixed));
  models::ClusterSpec cluster;
  cluster.gpu = models::find_gpu("v100-sxm-32gb");  // no bf16
  const planner::TimeModel volta(parts, cluster);
  CHECK_FALSE(volta.knows(models::Precision::bf16_mixed));
  CHECK(volta.knows(models::Precision::fp16_mixed));
  CHECK(volta.knows(models::Precision::fp32));
}

TEST_CASE("a gather on 8 H100 takes the ring's steps and bytes") {
  models::ClusterSpec cluster;
  cluster.gpu = models::find_gpu("h100-sxm-80gb");
  const planner::Fabric fabric = planner::fabric_of(cluster);
  const planner::Group node{8, 8};
  // Simple: 8.4 us + 7 steps of 3.4 us + 7/8 of 1 GiB over 0.817 of 450 GB/s
  // = 32.2 us + 939524096 B / 367.65e9 B/s = 32.2 us + 2555.48 us.
  CHECK(tests::near(planner::all_gather_seconds(fabric, node, 1073741824), 2587.7e-6, 1e-4));
  // 1 KiB by LL: 6.6 us + 7 steps of 0.6 us + 896 B over a quarter of that: 10.8 us + 0.01 us.
  CHECK(tests::near(planner::all_gather_seconds(fabric, node, 1024), 10.81e-6, 1e-3));
  // All-reduce by NVLS: 70 us + 1 GiB over 0.612 of 450 GB/s = 70 us + 3898.8 us.
  CHECK(tests::near(planner::all_reduce_seconds(fabric, node, 1073741824), 3968.8e-6, 1e-4));
}

TEST_CASE("all-reduce on 8 H200 is near the published sweep") {
  // stas00/ml-engineering, network/benchmarks/results/all-reduce-8xH200.md: MiB, bus bandwidth in
  // GB/s; seconds are 2 * 7/8 of the bytes over it.
  models::ClusterSpec cluster;
  cluster.gpu = models::find_gpu("h200-sxm-141gb");
  const planner::Fabric fabric = planner::fabric_of(cluster);
  for (const auto& [mib, measured] :
       {std::pair{4.0, 107.16}, {16.0, 219.89}, {64.0, 346.51}, {256.0, 436.15}, {4096.0, 473.1}}) {
    const double bytes = mib * 1048576;
    const double seconds = planner::all_reduce_seconds(fabric, {8, 8}, bytes);
    CHECK(tests::near(1.75 * bytes / seconds / 1e9, measured, 0.12));
  }
}

TEST_CASE("a group across nodes is as slow as the slower of NVLink and the node's adapters") {
  models::ClusterSpec cluster;
  cluster.gpu = models::find_gpu("a100-sxm-80gb");
  const planner::Group world = planner::group_of({.ranks = 64}, 8);
  CHECK(world.in_node == 8);
  CHECK(world.crosses_nodes());
  // 8 adapters of 25 GB/s, 0.9 of it: 180 GB/s, less than 0.783 of 300. 63/64 of 8 GiB:
  // 8455716864 B / 180e9 B/s = 46.98 ms, + 8.4 us + 7 crossings of 14 us + 56 steps of 3.4 us.
  CHECK(tests::near(planner::all_gather_seconds(planner::fabric_of(cluster), world, 8589934592),
                    46.976e-3 + 0.2968e-3, 1e-3));
  // One rank of each node: its own adapter only. 7/8 of 1 GiB over 22.5 GB/s = 41.757 ms, + 106 us.
  const planner::Group copies = planner::group_of({.ranks = 8, .stride = 8}, 8);
  CHECK(copies.in_node == 1);
  CHECK(tests::near(planner::all_gather_seconds(planner::fabric_of(cluster), copies, 1073741824),
                    41.757e-3 + 0.1064e-3, 1e-3));
}

TEST_CASE("a bridge joins two GPUs, a switch all of them, a mesh has a link for each neighbour") {
  const auto link = [](const char* gpu, std::int64_t ranks) {
    models::ClusterSpec cluster;
    cluster.gpu = models::find_gpu(gpu);
    return planner::inside_link(planner::fabric_of(cluster), planner::group_of({.ranks = ranks}, 8))
        .rate;
  };
  CHECK(link("rtx-3090", 2) == 56.25e9);
  CHECK(link("rtx-3090", 4) == 32e9);  // PCIe 4.0 x16
  CHECK(link("rtx-4090", 2) == 32e9);
  CHECK(link("h200-nvl-141gb", 4) == 450e9);
  CHECK(link("h200-nvl-141gb", 8) == 64e9);
  CHECK(link("a100-sxm-40gb", 2) == 300e9);
  CHECK(link("a100-sxm-40gb", 8) == 300e9);
  CHECK(link("mi300x", 8) == 448e9);
  CHECK(tests::near(link("mi300x", 2), 64e9, 1e-12));
  // stas00/ml-engineering, network: 4 GB on 8 x MI300X: 312.9 GB/s among 8, 47.7 between two.
  models::ClusterSpec cluster;
  cluster.gpu = models::find_gpu("mi300x");
  const double two = planner::all_reduce_seconds(planner::fabric_of(cluster), {2, 2}, 4e9);
  CHECK(tests::near(4e9 / two / 1e9, 47.7, 0.1));
  cluster.intra_node_bandwidth = 100e9;  // asked for: joins all
  CHECK(planner::inside_link(planner::fabric_of(cluster), {2, 2}).rate == 100e9);
}
