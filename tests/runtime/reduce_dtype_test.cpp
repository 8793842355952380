// --reduce-dtype: what ranks exchange of gradients that are wider, how long it lives, and what the
// sums are.
#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "tests/runtime/sharded_step.h"

namespace plimsoll::runtime::shard {
namespace {

using models::Precision;
using models::decisions::kLayerUnit;

// Two trained in bf16, two adapters in fp32: 15 -> 16, 5 -> 8, together 24; 10 -> 12, 6 -> 8,
// together 20 (shard_test.cpp).
const std::vector<UnitParameter> kParameters{
    {"w", {3, 5}}, {"A", {2, 5}, true, true}, {"b", {5}}, {"B", {3, 2}, true, true}};

struct Life {
  std::int64_t bytes, born, died;
  bool operator==(const Life&) const = default;
};
using Lives = std::vector<Life>;

// One step on 4 ranks, as rank 1's ledger saw it. Ops of a micro-batch: backward 0, and where it is
// reduced, reduce 1 and reduced 2; after the last one the step.
StepRecord record_of(int stage, std::int64_t accumulation = 1, bool deterministic = true) {
  StepCase c{.precision = Precision::bf16_mixed, .ranks = 4, .stage = stage, .lora = true};
  c.deterministic = deterministic;
  c.reduce = DType::bf16;
  StepRecord record;
  comm::run_ranks(4, [&](comm::Communicator& world) {
    ShardedRank rank(c, world);
    const auto unit = rank.unit(kLayerUnit, "", kParameters);
    unit->allocate();
    Ledger& ledger = rank.worker.memory.ledger();
    ledger.begin_step();
    for (std::int64_t m = 0; m < accumulation; ++m) {
      unit->begin_micro_batch(m, accumulation);
      {
        Op op(rank.worker, "backward");
        unit->gradient(0);
      }
      if (!unit->reduces()) continue;
      CHECK(unit->holds());
      reduce_alone(rank.worker, *unit);
    }
    StepRecord mine = step_alone(rank.worker, *unit);
    if (world.rank() == 1) record = std::move(mine);
  });
  return record;
}

Lives lives(const StepRecord& record, const std::string& name) {
  Lives out;
  for (const TensorRecord& tensor : record.tensors)
    if (tensor.name == name) out.push_back({tensor.bytes.value(), tensor.born, tensor.died});
  return out;
}

TEST_CASE("DDP casts whole gradients, which stay, until the sum is taken") {
  const StepRecord record = record_of(0);
  CHECK(lives(record, "gradients") == Lives{{24 * 2 + 20 * 4, 0, 3}});
  CHECK(lives(record, "gradients.compressed") == Lives{{(24 + 20) * 2, 1, 2}});
  CHECK(record.ops[1].high_water == record.resident + Bytes(128 + 88));
  CHECK(record.ops[2].high_water == record.resident + Bytes(128 + 88));
  CHECK(record.ops[2].allocated == record.resident + Bytes(128));
}

// Four pieces of 8 elements, of each part.
TEST_CASE(
    "stage 1 casts padded parts, and stages 2 and 3 let the whole gradients go with the cast") {
  CHECK(lives(record_of(1), "gradients") == Lives{{32 * 2 + 32 * 4, 0, 3}});
  CHECK(lives(record_of(1), "gradients.compressed") == Lives{{64 * 2, 1, 2}});
  for (const int stage : {2, 3}) {
    CAPTURE(stage);
    const StepRecord record = record_of(stage);
    CHECK(lives(record, "gradients") == Lives{{192, 0, 1}});
    CHECK(lives(record, "gradients.compressed") == Lives{{128, 1, 2}});
    CHECK(lives(record, "gradients.shard") == Lives{{8 * 2 + 8 * 4, 2, 3}});
    CHECK(record.ops[1].high_water == record.resident + Bytes(192 + 128));
    CHECK(record.ops[1].allocated == record.resident + Bytes(128));
    CHECK(record.ops[2].high_water == record.resident + Bytes(128 + 48));
  }
}

TEST_CASE("micro-batches that are reduced are cast each, the last one where it is reduced alone") {
  // backward 0, reduce 1, reduced 2; 3, 4, 5; step 6
  const StepRecord each = record_of(0, 2), last = record_of(0, 2, false);
  CHECK(lives(each, "gradients") == Lives{{128, 0, 6}});
  CHECK(lives(each, "gradients.new") == Lives{{128, 3, 4}});
  CHECK(lives(each, "gradients.compressed") == Lives{{88, 1, 2}, {88, 4, 5}});
  // backward 0, backward 1, reduce 2, reduced 3, step 4
  CHECK(lives(last, "gradients") == Lives{{128, 0, 4}});
  CHECK(lives(last, "gradients.compressed") == Lives{{88, 2, 3}});
}

TEST_CASE("a message is of the cast gradients") {
  const auto largest = [](int stage) {
    StepCase c{.precision = Precision::bf16_mixed, .ranks = 4, .stage = stage, .lora = true};
    c.reduce = DType::bf16;
    std::int64_t bytes = -1;
    comm::run_ranks(4, [&](comm::Communicator& world) {
      ShardedRank rank(c, world);
      const auto unit = rank.unit(kLayerUnit, "", kParameters);
      if (world.rank() == 0) bytes = unit->largest_message().value();
    });
    return bytes;
  };
  CHECK(largest(0) == 24 * 2);
  CHECK(largest(1) == 4 * 8 * 2);
}

// Gradients of one fp32 tensor after one reduction on 4 ranks; `value`: what a rank adds to each
// element. The same on all ranks.
std::vector<float> summed(StepCase c, const std::vector<std::vector<float>>& values,
                          std::int32_t* overflow = nullptr) {
  std::vector<float> sums;
  c.ranks = 4;
  comm::run_ranks(4, [&](comm::Communicator& world) {
    ShardedRank rank(c, world);
    const auto elements = static_cast<std::int64_t>(values.size());
    const auto unit = rank.unit(kLayerUnit, "", {{"w", {elements}}});
    unit->allocate();
    std::vector<Unit*> all{unit.get()};
    rank.worker.workspace = rank.worker.memory.allocate(
        "workspace", Category::workspace, DType::uint8, {gradient_norm_workspace(all).value()});
    for (std::int64_t m = 0; m < c.accumulation; ++m) {
      unit->begin_micro_batch(m, c.accumulation);
      std::vector<float> mine;
      for (const auto& ranks : values)
        mine.push_back(ranks[static_cast<std::size_t>(world.rank())]);
      Op op(rank.worker, "backward");
      rank.worker.kernels.add({mine.data(), DType::fp32, {elements}}, unit->gradient(0));
      if (!unit->reduces()) continue;
      unit->start_reduce(op);
      unit->take_reduced(op);
    }
    const Scalars scalars(rank.scalar_block.view());
    gradient_norm(rank.worker, all, *rank.shards, 1, 1, scalars);
    const std::vector<float> whole = unit->whole(State::gradients).front();
    if (world.rank() == 0) sums = whole;
    if (world.rank() == 0 && overflow != nullptr)
      *overflow = *static_cast<const std::int32_t*>(scalars.overflow().data);
    const auto others = world.gather(static_cast<double>(whole.back()));
    for (const double other : others) CHECK(other == whole.back());
    Op op(rank.worker, "drop");
    unit->drop_gradients(op);
  });
  return sums;
}

// bf16 has 8 bits of a number: between 1 and 2 a step is 2^-7, between 256 and 512 it is 2.
//   1 + 2^-8, halfway, goes to the even 1; 1 + 3 · 2^-8 to the even 1 + 2^-6; of both 4 ranks' sums
//   are exact.
//   256 + 1 = 257 is halfway, and goes to 256.
//   256 + 1 + 1 + 1 = 259, halfway between 258 and 260, goes to 260, which is even: the sum is made
//   in fp32 and rounded once. (Rounded each time, it would be 258.)
const std::vector<std::vector<float>> kValues{{1 + 0x1p-8f, 1 + 0x1p-8f, 1 + 0x1p-8f, 1 + 0x1p-8f},
                                              {1 + 0x3p-8f, 1 + 0x3p-8f, 1 + 0x3p-8f, 1 + 0x3p-8f},
                                              {256, 1, 0, 0},
                                              {256, 1, 1, 1},
                                              {-256, -1, -1, -1}};

TEST_CASE("gradients are rounded to nearest even, added in fp32, and rounded once more") {
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    StepCase c{.stage = stage};
    CHECK(summed(c, kValues) == std::vector<float>{4 + 0x1p-6f, 4 + 0x3p-6f, 257, 259, -259});
    c.reduce = DType::bf16;
    CHECK(summed(c, kValues) == std::vector<float>{4, 4 + 0x1p-4f, 256, 260, -260});
    // Each micro-batch's sum is added in fp32.
    c.accumulation = 3;
    CHECK(summed(c, kValues) == std::vector<float>{12, 12 + 0x3p-4f, 768, 780, -780});
  }
}

// Ranks 0 and 1 shard, and 2 and 3: 256 + 1 goes to 256, and 1 + 1 is 2; the replicas' 258 is
// exact.
TEST_CASE("in hybrid groups the sum of a group is rounded, and the sum over groups again") {
  for (const int stage : {1, 2, 3}) {
    CAPTURE(stage);
    StepCase c{.stage = stage, .shard_group = 2};
    c.reduce = DType::bf16;
    CHECK(summed(c, kValues) == std::vector<float>{4, 4 + 0x1p-4f, 256, 258, -258});
  }
}

// fp16 has 11 bits and ends at 65504; 30000 is a multiple of its step there, 16.
TEST_CASE("a sum that overflows in fp16 is found by the norm, where each rank's part is finite") {
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    StepCase c{.precision = Precision::fp16_mixed, .stage = stage};
    c.gradients = DType::fp32;
    std::int32_t overflow = -1;
    CHECK(summed(c, {{1, 1, 1, 1}, {30000, 30000, 30000, 0}}, &overflow) ==
          std::vector<float>{4, 90000});
    CHECK(overflow == 0);
    c.reduce = DType::fp16;
    const std::vector<float> sums = summed(c, {{1, 1, 1, 1}, {30000, 30000, 30000, 0}}, &overflow);
    CHECK(sums[0] == 4);
    CHECK(std::isinf(sums[1]));
    CHECK(overflow == 1);
    CHECK(summed(c, {{30000, 30000, 0, 0}}, &overflow) == std::vector<float>{60000});
    CHECK(overflow == 0);
  }
}

// Drawn between -1 and 1 on 3 ranks: each is rounded by at most 2^-9, and the sum, below 4, by
// 2^-7.
TEST_CASE("cast gradients differ from uncast ones by roundings, and by no bit between stages") {
  for (const std::int64_t accumulation : {1, 3}) {
    CAPTURE(accumulation);
    StepCase c{.ranks = 3, .accumulation = accumulation};
    const std::vector<ShardedStep> plain = run_step(c);
    c.reduce = DType::bf16;
    const std::vector<ShardedStep> ddp = run_step(c);
    double most = 0;
    for (std::size_t i = 0; i < plain[0].gradients.size(); ++i)
      for (std::size_t e = 0; e < plain[0].gradients[i].size(); ++e)
        most = std::max(
            most, std::abs(static_cast<double>(plain[0].gradients[i][e]) - ddp[0].gradients[i][e]));
    CHECK(most > 0);
    // fp32's own additions round too, by much less.
    CHECK(most <= static_cast<double>(accumulation) * (3 * 0x1p-9 + 0x1p-7) + 0x1p-20);
    for (int stage = 0; stage <= 3; ++stage) {
      CAPTURE(stage);
      c.stage = stage;
      for (const ShardedStep& result : run_step(c)) CHECK(result.same_values(ddp[0]));
    }
  }
}

}  // namespace
}  // namespace plimsoll::runtime::shard
