// What our own runtime has decided, where it is computed and not just stated.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "models/decisions/exchange.h"
#include "models/decisions/float8.h"
#include "models/decisions/layer.h"
#include "models/decisions/loss.h"
#include "models/decisions/mesh.h"
#include "models/decisions/precision.h"
#include "models/decisions/recursion.h"
#include "models/decisions/sharding.h"
#include "models/decisions/unit_names.h"
#include "models/decisions/workspace.h"

using namespace plimsoll;
using namespace plimsoll::models;
namespace decisions = plimsoll::models::decisions;

TEST_CASE("a chunk of the loss is the largest power of two of rows under 512 MiB, at least 128") {
  // Llama-3, bf16: 2^29 / (128256 · 2) = 2093; fp32 half of it. GPT-2 in fp32: 2670.
  CHECK(decisions::loss_chunk_rows(128'256, DType::bf16) == 2048);
  CHECK(decisions::loss_chunk_rows(128'256, DType::fp32) == 1024);
  CHECK(decisions::loss_chunk_rows(50'257, DType::fp32) == 2048);
  CHECK(decisions::loss_chunk_rows(1LL << 40, DType::bf16) == 128);
}

TEST_CASE("sqrt covers n layers with k checkpoints of k, k the least that suffices") {
  const auto k = [](std::int64_t layers) {
    return decisions::layers_per_checkpoint({.kind = RecomputeKind::sqrt}, layers);
  };
  CHECK(k(1) == 1);
  CHECK(k(4) == 2);
  CHECK(k(5) == 3);
  CHECK(k(80) == 9);
  const auto kept = [](std::int64_t layers, std::int64_t of) {
    return (layers + of - 1) / of + of;  // inputs of checkpoints, and layers of one
  };
  for (std::int64_t layers = 1; layers <= 200; ++layers)
    for (std::int64_t other = 1; other <= layers; ++other)
      CHECK(kept(layers, k(layers)) <= kept(layers, other));
  CHECK(decisions::layers_per_checkpoint({RecomputeKind::every, 100}, 12) == 12);
  CHECK(decisions::layers_per_checkpoint({RecomputeKind::full, 5}, 12) == 1);
  CHECK(decisions::layers_per_checkpoint({RecomputeKind::block, 5}, 12) == 1);
  CHECK(decisions::layers_per_checkpoint({RecomputeKind::nth, 5}, 12) == 1);
}

// By hand: of three steps and two places, one step ahead, then each from its own input. Against
// every other order: the least of all splits.
TEST_CASE("recursive recomputation runs as few steps again as any order can") {
  CHECK(decisions::steps_again(1, 5) == 0);
  CHECK(decisions::steps_again(2, 1) == 1);
  CHECK(decisions::steps_again(5, 1) == 4 + 3 + 2 + 1);
  CHECK(decisions::steps_again(3, 2) == 2);
  CHECK(decisions::steps_again(6, 2) == 8);  // 3 ahead, 2 of the right three, 3 of the left
  CHECK(decisions::steps_ahead(6, 2) == 3);
  CHECK(decisions::steps_again(33, 32) == 32);
  CHECK(decisions::steps_again(33, 999'999) == 32);
  constexpr std::size_t kMost = 70;
  std::vector<std::vector<std::int64_t>> least(kMost + 1, std::vector<std::int64_t>(kMost + 1, 0));
  for (std::size_t c = 0; c <= kMost; ++c)
    for (std::size_t n = 2; n <= kMost; ++n) {
      std::int64_t& best = least[n][c] = 1'000'000;
      for (std::size_t m = 1; m < n && c > 0; ++m)
        best = std::min(best, static_cast<std::int64_t>(m) + least[n - m][c - 1] + least[m][c]);
      if (c == 0) continue;
      const auto [steps, places] =
          std::pair(static_cast<std::int64_t>(n), static_cast<std::int64_t>(c));
      REQUIRE(decisions::steps_again(steps, places) == best);
      const auto m = static_cast<std::size_t>(decisions::steps_ahead(steps, places));
      REQUIRE(m + static_cast<std::size_t>(least[n - m][c - 1] + least[m][c]) ==
              static_cast<std::size_t>(best));
    }
}

// torchtitan counts its layers from 1 (parallelize_llama.py, ptd_checkpoint_wrapper._count).
TEST_CASE(
    "block:N has checkpoints around the first N layers, nth:N around every Nth, others around all "
    "or none") {
  const auto in_checkpoints = [](RecomputeKind kind, std::int64_t n = 3) {
    std::vector<int> layers;
    for (int layer = 0; layer < 5; ++layer)
      if (decisions::recomputes_layer({kind, n}, layer)) layers.push_back(layer);
    return layers;
  };
  CHECK(in_checkpoints(RecomputeKind::block) == std::vector{0, 1, 2});
  CHECK(in_checkpoints(RecomputeKind::nth) == std::vector{2});
  CHECK(in_checkpoints(RecomputeKind::nth, 2) == std::vector{1, 3});
  CHECK(in_checkpoints(RecomputeKind::nth, 5) == std::vector{4});
  CHECK(in_checkpoints(RecomputeKind::nth, 1).size() == 5);
  for (const RecomputeKind kind : {RecomputeKind::full, RecomputeKind::sqrt, RecomputeKind::every,
                                   RecomputeKind::recursive, RecomputeKind::ops})
    CHECK(in_checkpoints(kind).size() == 5);
  CHECK(in_checkpoints(RecomputeKind::none).empty());
  CHECK(in_checkpoints(RecomputeKind::selective).empty());
}

TEST_CASE("one shard is stage 0; hybrid groups are copies of one another") {
  Strategy s;
  s.gpus = 8;
  s.data.zero = 3;
  CHECK(decisions::sharding_of(s).shards == 8);
  s.data.shard_group = 4;
  CHECK(decisions::sharding_of(s).shards == 4);
  CHECK(decisions::sharding_of(s).replicas == 2);
  s.data.shard_group = 1;
  CHECK(decisions::sharding_of(s).stage == 0);
  CHECK(decisions::sharding_of(s).replicas == 8);
  CHECK(decisions::sharding_of(s).reduces());
  s.gpus = 1;
  CHECK_FALSE(decisions::sharding_of(s).reduces());
}

TEST_CASE("neighbours share shards, and their groups are replicas of each other") {
  models::Strategy s;
  s.gpus = 8;
  s.data.zero = 3;
  s.data.shard_group = 4;
  const decisions::Mesh mesh = decisions::mesh_of(s);
  using decisions::Axis;
  CHECK(mesh[Axis::shard] == decisions::AxisGroup{4, 1});
  CHECK(mesh[Axis::replicate] == decisions::AxisGroup{2, 4});
  CHECK(mesh[Axis::tensor] == decisions::AxisGroup{1, 1});
  // Ranks 4 to 7 share shards; 1 and 5 hold the same.
  CHECK(mesh[Axis::shard].index_of(5) == 1);
  CHECK(mesh[Axis::replicate].index_of(5) == 1);
  CHECK(mesh[Axis::replicate].index_of(1) == 1);
  CHECK(mesh.replicates());
  s.data.shard_group = 0;
  CHECK_FALSE(decisions::mesh_of(s).replicates());
  s.data.zero = 0;  // DDP: eight replicas, each a group of its own that shards nothing
  CHECK(decisions::mesh_of(s)[Axis::replicate] == decisions::AxisGroup{8, 1});
  CHECK(decisions::mesh_of(s)[Axis::shard].index_of(5) == 5);
  CHECK(decisions::mesh_of(s)[Axis::replicate].index_of(5) == 0);
}

TEST_CASE("an inner axis' ranks are neighbours; an outer one's stand the inner ranks apart") {
  using decisions::Axis;
  // 2 tensor x 3 shard x 2 replicate, 4 of 12 ranks in a node. Ranks 0 1 | 2 3 | 4 5 are the first
  // replica's pairs, 6 to 11 the second's.
  constexpr decisions::Mesh mesh = decisions::mesh_of({2, 1, 1, 3, 2, 1}, 4);
  CHECK(mesh[Axis::tensor] == decisions::AxisGroup{2, 1});
  CHECK(mesh[Axis::shard] == decisions::AxisGroup{3, 2});
  CHECK(mesh[Axis::replicate] == decisions::AxisGroup{2, 6});
  CHECK(mesh.data() == decisions::AxisGroup{6, 2});  // ranks 0 2 4 6 8 10
  CHECK(mesh.ranks() == 12);
  CHECK(mesh[Axis::shard].index_of(7) == 3);  // 7 9 11, after 0 2 4, 1 3 5 and 6 8 10
  CHECK(mesh[Axis::tensor].in_node(mesh.node) == 2);
  CHECK(mesh[Axis::shard].in_node(mesh.node) == 2);  // 0 and 2; 4 is in the next node
  CHECK(mesh[Axis::replicate].in_node(mesh.node) == 1);
  CHECK(mesh.ranks_in_node() == 4);
  CHECK(mesh.nodes() == 3);
  CHECK(mesh.crosses_nodes());
}

TEST_CASE("a strategy shards in groups where its shards have replicas, and not under DDP") {
  Strategy s;
  s.gpus = 8;
  CHECK_FALSE(decisions::shards_in_groups(s));
  s.data.zero = 3;
  CHECK_FALSE(decisions::shards_in_groups(s));
  s.data.shard_group = 4;
  CHECK(decisions::shards_in_groups(s));
  CHECK(decisions::mesh_of(s).data().ranks == 8);
  s.tp = 2;  // four ranks of data, whose shards are neighbours of neighbours
  const decisions::Mesh mesh = decisions::mesh_of(s);
  CHECK(mesh[decisions::Axis::tensor] == decisions::AxisGroup{2, 1});
  CHECK(mesh[decisions::Axis::shard] == decisions::AxisGroup{4, 2});
  CHECK_FALSE(mesh.replicates());
  CHECK(mesh.data().ranks == 4);
  CHECK(mesh.ranks() == 8);
  CHECK(mesh.divides_layers());
  s.tp = 3;  // refused likewise
  CHECK(decisions::mesh_of(s).ranks() == 8);
  CHECK_FALSE(decisions::mesh_of(s).divides_layers());
  s.tp = 1;
  s.data.shard_group = 3;  // refused; until then there are as many ranks as were asked for
  CHECK(decisions::mesh_of(s).ranks() == 8);
}

TEST_CASE("in the deterministic mode all stages reduce at the same moments") {
  using decisions::ReduceMoment;
  for (int stage = 0; stage <= 3; ++stage) {
    CHECK(decisions::reduce_moment(stage, true) == ReduceMoment::every_micro_batch);
    CHECK(decisions::reduce_moment(stage, false) ==
          (stage >= 2 ? ReduceMoment::every_micro_batch : ReduceMoment::last_micro_batch));
  }
}

TEST_CASE("sums over a network in the runtime's own order need a block, others none") {
  using models::Device;
  using models::Exchange;
  for (const bool deterministic : {false, true}) {
    CHECK_FALSE(decisions::stages_sums(Exchange::threads, deterministic));
    CHECK(decisions::stages_sums(Exchange::mpi, deterministic));
    CHECK(decisions::stages_sums(Exchange::nccl, deterministic) == deterministic);
  }
  Strategy s;
  CHECK(decisions::exchange_of(s) == Exchange::nccl);
  s.device = Device::cpu;
  CHECK(decisions::exchange_of(s) == Exchange::threads);
  s.exchange = Exchange::mpi;
  CHECK(decisions::exchange_of(s) == Exchange::mpi);
}

TEST_CASE("dtypes by precision") {
  using decisions::TrainedDtypes;
  Strategy s;
  const auto base = [&](Precision precision) {
    s.precision = precision;
    return decisions::regime_of(s).base;
  };
  CHECK(base(Precision::fp32) == TrainedDtypes{DType::fp32, DType::fp32, false, DType::fp32});
  CHECK(base(Precision::bf16_mixed) == TrainedDtypes{DType::bf16, DType::bf16, true, DType::fp32});
  CHECK(base(Precision::fp16_mixed) == TrainedDtypes{DType::fp16, DType::fp16, true, DType::fp32});
  CHECK(decisions::regime_of(s).loss_scaling);
  CHECK(base(Precision::bf16) == TrainedDtypes{DType::bf16, DType::bf16, false, DType::bf16});
  CHECK_THROWS_AS(base(Precision::fp16), Error);
  CHECK(base(Precision::fp8_mixed) == base(Precision::bf16_mixed));
  s.precision = Precision::bf16_mixed;
  CHECK(!decisions::regime_of(s).float8);
  s.precision = Precision::fp8_mixed;
  CHECK(decisions::regime_of(s).compute == DType::bf16);
  CHECK(decisions::regime_of(s).float8);
}

TEST_CASE("linears whose widths are multiples of 16 are in 8 bits, where that is asked for") {
  decisions::Regime regime;
  CHECK(!decisions::in_float8(regime, 32, 64));
  regime.float8 = true;
  CHECK(decisions::in_float8(regime, 32, 64));
  CHECK(!decisions::in_float8(regime, 24, 64));
  CHECK(!decisions::in_float8(regime, 32, 8));
}

TEST_CASE("cuBLASLt's products in 8 bits want whole multiples of 16 tokens") {
  const ModelSpec model;
  Strategy s;
  s.precision = Precision::fp8_mixed;
  CHECK_NOTHROW(decisions::check_float8(model, s, {.seq_len = 8, .micro_batch = 2}));
  CHECK_THROWS_WITH_AS(decisions::check_float8(model, s, {.seq_len = 24}),
                       doctest::Contains("24 tokens in a micro-batch"), Error);
  s.precision = Precision::bf16_mixed;
  CHECK_NOTHROW(decisions::check_float8(model, s, {.seq_len = 24}));
}

TEST_CASE("tensors and ops are called after the checkpoint's modules") {
  CHECK(std::string(decisions::linear_names_of("mlp.down_proj").weight_grad) ==
        "mlp.down_proj.weight.grad");
  CHECK(std::string(decisions::norm_names_of("self_attn.q_norm").statistics) ==
        "self_attn.q_norm.statistics");
  CHECK(std::string(decisions::attention_names_of("attn").q_grad) == "attn.q.grad");
  CHECK(std::string(decisions::kTailUnit.gradients_shard) == "tail.gradients.shard");
  CHECK(std::string(decisions::kHead.adapter_a_out) == "lm_head.lora_A.out");
}

TEST_CASE("16 bytes are 8 values of 16 bits and 4 of 32") {
  CHECK(decisions::alignment_elements(DType::bf16) == 8);
  CHECK(decisions::alignment_elements(DType::fp32) == 4);
}
