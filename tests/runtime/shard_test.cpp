#include <cmath>
#include <map>

#include <doctest/doctest.h>

#include "tests/near.h"
#include "tests/runtime/sharded_step.h"

namespace plimsoll::runtime::shard {
namespace {

using models::Precision;
using models::decisions::kLayerUnit;

models::decisions::Regime regime_of(Precision precision, bool lora = false) {
  models::Strategy strategy;
  strategy.precision = precision;
  if (lora) strategy.lora.emplace();
  return models::decisions::regime_of(strategy);
}

// One frozen, two trained, two adapters. In bf16 tensors are aligned to 8 elements, in fp32 to 4:
//   frozen   10 -> 16
//   trained  15 -> 16, 5 -> 8: 24
//   adapters (fp32) 10 -> 12, 6 -> 8: 20
const std::vector<UnitParameter> kParameters{{"w", {3, 5}},
                                             {"f", {10}, false},
                                             {"A", {2, 5}, true, true},
                                             {"b", {5}},
                                             {"B", {3, 2}, true, true}};

TEST_CASE("tensors of a part follow one another, aligned to 16 B, in the parameters' order") {
  const UnitLayout layout =
      layout_of(kParameters, regime_of(Precision::bf16_mixed, true), models::Optimizer::adamw, 1);
  CHECK(layout.part(Part::frozen).whole == 16);
  CHECK(layout.part(Part::trained).whole == 24);
  CHECK(layout.part(Part::adapters).whole == 20);
  CHECK(layout.places[0].first == 0);
  CHECK(layout.places[3].first == 16);
  CHECK(layout.places[3].part == Part::trained);
  CHECK(layout.places[4].first == 12);
  CHECK(layout.places[4].part == Part::adapters);
  CHECK(layout.trained_elements() == 44);
}

TEST_CASE("a part is padded to a multiple of shards times 16 B, and a frozen one too") {
  // 4 shards: multiples of 32 elements in bf16, of 16 in fp32.
  const UnitLayout layout =
      layout_of(kParameters, regime_of(Precision::bf16_mixed, true), models::Optimizer::adamw, 4);
  CHECK(layout.part(Part::frozen).whole == 32);
  CHECK(layout.part(Part::trained).whole == 32);
  CHECK(layout.part(Part::adapters).whole == 32);
  CHECK(layout.part(Part::trained).piece == 8);
  CHECK(layout.trained_elements() == 44);  // of no sharding
  // w: elements 0-7 of the flat part are rank 0's, 8-14 rank 1's; b is 16-20: rank 2's.
  CHECK(layout.in_piece(0, 0).count == 8);
  CHECK(layout.in_piece(0, 1).first == 8);
  CHECK(layout.in_piece(0, 1).count == 7);
  CHECK(layout.in_piece(0, 1).offset == 0);
  CHECK(layout.in_piece(3, 2).count == 5);
  CHECK(layout.in_piece(3, 3).count == 0);
}

// Bytes of what lives under a name, and the births and deaths of what comes and goes.
std::map<std::string, std::int64_t> bytes_of(const StepRecord& record) {
  std::map<std::string, std::int64_t> bytes;
  for (const TensorRecord& tensor : record.tensors) bytes[tensor.name] += tensor.bytes.value();
  return bytes;
}

// One step of the unit above on 4 ranks, as rank 2's ledger saw it.
StepRecord record_of(int stage, std::int64_t accumulation, bool deterministic = true) {
  StepCase c;
  c.precision = Precision::bf16_mixed;
  c.ranks = 4;
  c.stage = stage;
  c.lora = true;
  c.deterministic = deterministic;
  StepRecord record;
  comm::run_ranks(4, [&](comm::Communicator& world) {
    ShardedRank rank(c, world);
    const auto unit = rank.unit(kLayerUnit, "layers.3.", kParameters);
    unit->allocate();
    Ledger& ledger = rank.worker.memory.ledger();
    ledger.begin_step();
    for (std::int64_t m = 0; m < accumulation; ++m) {
      unit->begin_micro_batch(m, accumulation);
      if (unit->gathers()) {
        {
          Op op(rank.worker, "gather");
          unit->start_gather(op);
        }
        Op op(rank.worker, "free");
        CHECK(unit->value(1).elements() == 10);
        unit->free_gathered(op);
      }
      {
        Op op(rank.worker, "backward");
        unit->gradient(0);
        unit->gradient(2);
      }
      if (!unit->reduces()) continue;
      reduce_alone(rank.worker, *unit);
    }
    StepRecord mine = step_alone(rank.worker, *unit);
    if (world.rank() == 2) record = std::move(mine);
  });
  return record;
}

TEST_CASE("DDP stores everything whole") {
  const StepRecord record = record_of(0, 1);
  auto bytes = bytes_of(record);
  // 16 · 2 frozen + 24 · 2 trained + 20 · 4 adapters
  CHECK(bytes["layers.3.parameters"] == 160);
  CHECK(bytes["layers.3.masters"] == 24 * 4);  // fp32 adapters are their own
  CHECK(bytes["layers.3.exp_avg"] == 44 * 4);
  CHECK(bytes["layers.3.exp_avg_sq"] == 44 * 4);
  CHECK(bytes["layers.3.gradients"] == 24 * 2 + 20 * 4);
  CHECK(bytes["scalars"] == 256);
  CHECK(bytes.size() == 6);
  CHECK(record.resident == Bytes(160 + 96 + 2 * 176 + 256));
  CHECK(record.peak == record.resident + Bytes(128));
}

TEST_CASE("stage 1 keeps a piece of the optimizer's states, of padded parts") {
  auto bytes = bytes_of(record_of(1, 1));
  CHECK(bytes["layers.3.parameters"] == 32 * 2 + 32 * 2 + 32 * 4);
  CHECK(bytes["layers.3.masters"] == 8 * 4);
  CHECK(bytes["layers.3.exp_avg"] == 16 * 4);
  CHECK(bytes["layers.3.gradients"] == 32 * 2 + 32 * 4);
  CHECK(bytes.count("layers.3.gradients.shard") == 0);
}

TEST_CASE("stage 2 keeps a piece of the gradients, and whole ones until they are reduced") {
  const StepRecord record = record_of(2, 1);
  auto bytes = bytes_of(record);
  CHECK(bytes["layers.3.parameters"] == 256);
  CHECK(bytes["layers.3.gradients"] == 192);
  CHECK(bytes["layers.3.gradients.shard"] == 8 * 2 + 8 * 4);
  // backward 0, reduce 1, reduced 2, step 3
  for (const TensorRecord& tensor : record.tensors) {
    if (tensor.name == "layers.3.gradients") {
      CHECK(tensor.born == 0);
      CHECK(tensor.died == 2);
    }
    if (tensor.name == "layers.3.gradients.shard") {
      CHECK(tensor.born == 2);
      CHECK(tensor.died == 3);
    }
  }
  CHECK(record.ops[2].high_water == record.resident + Bytes(192 + 48));
  CHECK(record.ops[2].allocated == record.resident + Bytes(48));
  CHECK(record.ops[3].allocated == record.resident);
}

TEST_CASE("stage 3 keeps a piece of everything and gathers whole parameters for a while") {
  const StepRecord record = record_of(3, 1);
  auto bytes = bytes_of(record);
  CHECK(bytes["layers.3.parameters"] == 64);
  CHECK(bytes["layers.3.parameters.gathered"] == 256);
  CHECK(bytes["layers.3.masters"] == 32);
  CHECK(bytes["layers.3.gradients.shard"] == 48);
  CHECK(record.ops[0].allocated == record.resident + Bytes(256));
  CHECK(record.ops[1].allocated == record.resident);
}

std::int64_t count(const StepRecord& record, const std::string& name) {
  std::int64_t n = 0;
  for (const TensorRecord& tensor : record.tensors) n += tensor.name == name ? 1 : 0;
  return n;
}

TEST_CASE("later micro-batches have gradients of their own exactly where each is reduced") {
  // Kept and reduced each time: what comes next is summed for itself, then added.
  for (const int stage : {0, 1}) {
    CAPTURE(stage);
    const StepRecord each = record_of(stage, 3), last = record_of(stage, 3, false);
    CHECK(count(each, "layers.3.gradients") == 1);
    CHECK(count(each, "layers.3.gradients.new") == 2);
    CHECK(count(last, "layers.3.gradients") == 1);
    CHECK(count(last, "layers.3.gradients.new") == 0);
  }
  for (const int stage : {2, 3}) {
    CAPTURE(stage);
    const StepRecord each = record_of(stage, 3);
    CHECK(count(each, "layers.3.gradients") == 3);
    CHECK(count(each, "layers.3.gradients.new") == 0);
    CHECK(count(each, "layers.3.gradients.shard") == 1);
  }
}

std::int64_t largest_message(int ranks, int stage, std::int64_t bucket_cap) {
  StepCase c{.precision = Precision::bf16_mixed, .ranks = ranks, .stage = stage, .lora = true};
  c.bucket_cap = Bytes(bucket_cap);
  std::int64_t bytes = -1;
  comm::run_ranks(ranks, [&](comm::Communicator& world) {
    ShardedRank rank(c, world);
    const auto unit = rank.unit(kLayerUnit, "", kParameters);
    if (world.rank() == 0) bytes = unit->largest_message().value();
  });
  return bytes;
}

TEST_CASE("a message is at most the bucket, in whole alignments, and at most a part") {
  // Stage 0: adapters 20 · 4 B, trained 24 · 2 B.
  CHECK(largest_message(4, 0, 1 << 20) == 80);
  // 50 / 4 B = 12 elements; 50 / 2 B = 25, in whole alignments 24
  CHECK(largest_message(4, 0, 50) == 48);
  // Four pieces of 8 elements: 128 and 64 B. In 100 B: 6 elements of each fp32 piece, 4 of them
  // aligned, so 64 B; 12 of each bf16 piece, 8 of them: 64 B.
  CHECK(largest_message(4, 1, 1 << 20) == 128);
  CHECK(largest_message(4, 2, 100) == 64);
  CHECK(largest_message(1, 0, 100) == 0);
}

TEST_CASE("gradients that no step reads are dropped") {
  StepCase c;
  c.lora = true;
  const auto world = comm::single_communicator();
  ShardedRank rank(c, *world);
  const auto unit = rank.unit(kLayerUnit, "", kParameters);
  unit->allocate();
  const Bytes before = rank.worker.memory.ledger().live();
  {
    Op op(rank.worker, "backward");
    unit->gradient(0);
  }
  CHECK(rank.worker.memory.ledger().live() > before);
  {
    Op op(rank.worker, "drop");
    unit->drop_gradients(op);
  }
  CHECK(rank.worker.memory.ledger().live() == before);
}

TEST_CASE("what was loaded comes back whole, and masters keep what the weights lose") {
  const auto value = [](std::size_t parameter, std::int64_t element) {
    return drawn(parameter * 1000 + static_cast<std::uint64_t>(element));
  };
  for (const int stage : {0, 1, 2, 3})
    for (const int ranks : {1, 3, 8}) {
      CAPTURE(stage);
      CAPTURE(ranks);
      StepCase c;
      c.precision = Precision::bf16_mixed;
      c.ranks = ranks;
      c.stage = stage;
      c.lora = true;
      comm::run_ranks(ranks, [&](comm::Communicator& world) {
        ShardedRank rank(c, world);
        const auto unit = rank.unit(kLayerUnit, "", kParameters);
        unit->allocate();
        unit->load([&](std::size_t parameter, std::int64_t first, std::span<float> to) {
          for (std::size_t i = 0; i < to.size(); ++i)
            to[i] = value(parameter, first + static_cast<std::int64_t>(i));
        });
        const auto weights = unit->whole(State::weights), masters = unit->whole(State::masters);
        bool weights_right = true, masters_right = true;
        for (std::size_t p = 0; p < kParameters.size(); ++p)
          for (std::size_t i = 0; i < weights[p].size(); ++i) {
            const float exact = value(p, static_cast<std::int64_t>(i));
            const float tolerance = kParameters[p].adapter ? 0 : 0x1p-8f * std::abs(exact);
            weights_right = weights_right && std::abs(weights[p][i] - exact) <= tolerance;
            if (!masters[p].empty()) masters_right = masters_right && masters[p][i] == exact;
          }
        CHECK(weights_right);
        CHECK(masters_right);
        CHECK(weights[1].size() == 10);
        CHECK(masters[0].size() == 15);
        CHECK(masters[1].empty());  // frozen
        CHECK(masters[2].empty());  // fp32
      });
    }
}

// Of all stages on `ranks` ranks, every rank, against DDP's rank 0.
void expect_equal_stages(StepCase c) {
  c.stage = 0;
  const std::vector<ShardedStep> ddp = run_step(c);
  CHECK(ddp[0].overflow == 0);
  CHECK(ddp[0].norm > 0);
  for (int stage = 0; stage <= 3; ++stage) {
    CAPTURE(stage);
    c.stage = stage;
    for (const ShardedStep& result : run_step(c)) CHECK(result.same_values(ddp[0]));
  }
}

TEST_CASE("DDP, ZeRO-1, 2 and 3 give the same bits: norm, clipping, weights and states") {
  for (const Precision precision :
       {Precision::fp32, Precision::bf16_mixed, Precision::fp16_mixed, Precision::bf16})
    for (const std::int64_t accumulation : {1, 3}) {
      CAPTURE(static_cast<int>(precision));
      CAPTURE(accumulation);
      expect_equal_stages({.precision = precision, .ranks = 3, .accumulation = accumulation});
    }
  for (const int ranks : {2, 4, 8}) {
    CAPTURE(ranks);
    expect_equal_stages({.precision = Precision::bf16_mixed, .ranks = ranks, .steps = 2});
    expect_equal_stages({.precision = Precision::bf16, .ranks = ranks, .lora = true});
  }
  expect_equal_stages({.ranks = 3, .optimizer = models::Optimizer::momentum});
  // The layer's 150528 elements in 8 bits, the embedding's 333 and the tail's 120 in fp32.
  for (const Precision precision : {Precision::fp32, Precision::bf16_mixed, Precision::bf16}) {
    expect_equal_stages({.precision = precision,
                         .ranks = 3,
                         .accumulation = 2,
                         .steps = 3,
                         .optimizer = models::Optimizer::adam8bit});
    expect_equal_stages(
        {.precision = precision, .ranks = 4, .steps = 2, .optimizer = models::Optimizer::lion8bit});
  }
  expect_equal_stages({.ranks = 3, .optimizer = models::Optimizer::sgd, .bucket_cap = Bytes(5000)});
}

double largest(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  double difference = 0, scale = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t e = 0; e < a[i].size(); ++e) {
      difference += std::pow(static_cast<double>(a[i][e]) - b[i][e], 2);
      scale += std::pow(static_cast<double>(b[i][e]), 2);
    }
  return std::sqrt(difference / scale);
}

TEST_CASE("shards inside groups and replicas between them agree with one group within 1e-6") {
  StepCase c{.ranks = 4, .stage = 0, .accumulation = 2};
  const ShardedStep ddp = run_step(c)[0];
  for (int stage = 1; stage <= 3; ++stage) {
    CAPTURE(stage);
    c.stage = stage;
    c.shard_group = 2;
    for (const ShardedStep& hybrid : run_step(c)) {
      CHECK(largest(hybrid.gradients, ddp.gradients) < 1e-6);
      CHECK(largest(hybrid.weights, ddp.weights) < 1e-6);
      CHECK(tests::near(hybrid.norm, ddp.norm, 1e-6));
    }
  }
}

TEST_CASE("reduced once or after each micro-batch, gradients agree within 1e-6") {
  const ShardedStep four = run_step({.ranks = 4, .accumulation = 2, .max_norm = 0})[0];
  const ShardedStep last =
      run_step({.ranks = 4, .deterministic = false, .accumulation = 2, .max_norm = 0})[0];
  CHECK(largest(last.gradients, four.gradients) < 1e-6);
  CHECK(largest(last.weights, four.weights) < 1e-6);
}

TEST_CASE("an infinite gradient of one rank skips the step on all, under every stage") {
  const ShardedStep before =
      run_step({.precision = Precision::fp16_mixed, .ranks = 3, .steps = 0})[0];
  for (int stage = 0; stage <= 3; ++stage) {
    CAPTURE(stage);
    for (const ShardedStep& result : run_step(
             {.precision = Precision::fp16_mixed, .ranks = 3, .stage = stage, .overflow = true})) {
      CHECK(result.overflow == 1);
      CHECK(result.weights == before.weights);
      CHECK(result.masters == before.masters);
      CHECK(result.first_moments == before.first_moments);
      CHECK(count(result.record, "layers.0.gradients") == 1);
      CHECK(result.record.ops.back().allocated == result.record.resident);
    }
  }
}

TEST_CASE("what is not gathered cannot be read") {
  StepCase c{.ranks = 2, .stage = 3};
  comm::run_ranks(2, [&](comm::Communicator& world) {
    ShardedRank rank(c, world);
    const auto unit = rank.unit(kLayerUnit, "layers.1.", kParameters);
    unit->allocate();
    CHECK_THROWS_WITH_AS(unit->value(0), "layers.1.parameters: used when it is not there", Error);
    CHECK_THROWS_AS(unit->gradient(1), Error);  // frozen
  });
}

}  // namespace
}  // namespace plimsoll::runtime::shard
