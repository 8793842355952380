// A program's sizes as expressions of its batch, and for which batches they hold.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "planner/program/program_builder.h"
#include "planner/stacks/pytorch/optimizer_states.h"

using namespace plimsoll;
using namespace plimsoll::planner;
using models::Batch;
using models::Category;
using models::Phase;

namespace {

constexpr Batch kTwo{.seq_len = 10, .micro_batch = 2, .grad_accum = 4};

Batch of(std::int64_t micro_batch, std::int64_t grad_accum = 4, std::int64_t seq_len = 10) {
  return {.seq_len = seq_len, .micro_batch = micro_batch, .grad_accum = grad_accum};
}

// A program of one tensor, whose bytes `size` computes from micro_batch and grad_accum.
struct OneTensor {
  models::StepProgram program;
  BatchSizes sizes;

  template <class Size>
  explicit OneTensor(Size size, std::int64_t granularity = 1) {
    SizeRecorder recorder(kTwo, program);
    ProgramBuilder builder(program, granularity);
    builder.tensor("x",
                   SymBytes(size(value_of(kTwo, StepVariable::micro_batch),
                                 value_of(kTwo, StepVariable::grad_accum))),
                   Category::activations);
    sizes = recorder.finish();
  }
  // Of another batch; -1: the batch is of another class.
  std::int64_t bytes(const Batch& batch) {
    return sizes.write(batch, program) ? program.tensors[0].bytes.value() : -1;
  }
  std::int64_t now() const { return program.tensors[0].bytes.value(); }
};

}  // namespace

TEST_CASE("an expression has for another batch the value that is computed for it") {
  OneTensor sum([](SymInt b, SymInt a) { return 3 * b + a - 1; });
  CHECK(sum.now() == 9);
  CHECK(sum.bytes(of(5, 7)) == 21);
  OneTensor parts([](SymInt b, SymInt a) { return b * a / 3 + b % 3 + ceil_divide(b * a, 5); });
  CHECK(parts.now() == 2 + 2 + 2);
  CHECK(parts.bytes(of(7, 4)) == 9 + 1 + 6);
  OneTensor bounds([](SymInt b, SymInt) { return larger(b * 10, 45) + smaller(b, 6); });
  CHECK(bounds.now() == 45 + 2);
  CHECK(bounds.bytes(of(9)) == 90 + 6);
  OneTensor rounded([](SymInt b, SymInt) { return b * 300; }, 512);
  CHECK(rounded.now() == 1024);
  CHECK(rounded.bytes(of(4)) == 1536);
  OneTensor called([](SymInt b, SymInt) {
    return planner::called(
        [](std::int64_t x, std::int64_t y, std::int64_t, std::int64_t) { return x * x + y; }, b, 5);
  });
  CHECK(called.bytes(of(6)) == 41);
  OneTensor packed([](SymInt b, SymInt) { return storage(b * 3, DType::nf4).value(); });
  CHECK(packed.now() == 3);
  CHECK(packed.bytes(of(3)) == 5);
}

TEST_CASE("the highest of several sums is another one for another batch") {
  // 10 b + 8 b, or 10 b + 3 * 7, or 100.
  const std::vector<Multiples> sums{{1, 2, 0, 0}, {1, 0, 3, 0}, {0, 0, 0, 4}};
  const auto highest = [&](SymInt b, SymInt) {
    const std::array<SymBytes, 4> sizes{SymBytes(b * 10), SymBytes(b * 4), SymBytes(SymInt(7)),
                                        SymBytes(SymInt(25))};
    return highest_sum(sizes, sums).value();
  };
  OneTensor most(highest);
  CHECK(most.now() == 100);
  CHECK(most.bytes(of(5)) == 100);  // 90, 71, 100
  CHECK(most.bytes(of(6)) == 108);  // 108, 81, 100
  CHECK(most.bytes(of(1)) == 100);  // 18, 31, 100
  CHECK(highest_sum({}, {}) == 0_B);
  CHECK(highest_sum(std::array{SymBytes(5_B), SymBytes(4_B)}, std::vector<Multiples>{{1, 2}}) ==
        13_B);  // nobody listens
  CHECK(most.bytes(of(std::numeric_limits<std::int64_t>::max() / 16, 1)) == -1);
}

TEST_CASE(
    "what is called twice with the same numbers is one expression, other numbers are another") {
  OneTensor calls([](SymInt b, SymInt) {
    const auto square = [](std::int64_t x, std::int64_t y, std::int64_t, std::int64_t) {
      return x * x + y;
    };
    const SymInt first = called(square, b, 1), again = called(square, b, 1);
    CHECK(same_expression(first, again));
    CHECK_FALSE(same_expression(first, called(square, b, 2)));
    CHECK_FALSE(same_expression(first, called(square, b * 1 + 1, 1)));
    return first + again;
  });
  CHECK(calls.now() == 10);
  CHECK(calls.bytes(of(3)) == 20);
}

TEST_CASE("it holds where every comparison comes out as it did, and elsewhere nothing is written") {
  OneTensor branch([](SymInt b, SymInt) { return b > 4 ? SymInt(1000) : b * 7; });
  CHECK(branch.now() == 14);
  CHECK(branch.bytes(of(4)) == 28);
  CHECK(branch.bytes(of(5)) == -1);
  CHECK(branch.now() == 28);
  OneTensor same([](SymInt b, SymInt a) { return b * 2 == a ? b : a; });
  CHECK(same.bytes(of(3, 6)) == 3);
  CHECK(same.bytes(of(3, 5)) == -1);
  OneTensor plain([](SymInt b, SymInt a) { return a * static_cast<std::int64_t>(b); });
  CHECK(plain.bytes(of(2, 9)) == 18);
  CHECK(plain.bytes(of(3, 9)) == -1);
  OneTensor any([](SymInt b, SymInt) { return b; });
  CHECK(any.bytes(of(8, 4, 11)) == -1);  // rows of another length
}

TEST_CASE("what overflows is left to the writer, who says so") {
  OneTensor big(
      [](SymInt b, SymInt) { return b * (std::numeric_limits<std::int64_t>::max() / 8); });
  CHECK(big.bytes(of(8)) > 0);
  CHECK(big.bytes(of(9)) == -1);
  OneTensor divided([](SymInt b, SymInt a) { return a / (b - 1); });
  CHECK(divided.bytes(of(5)) == 1);
  CHECK(divided.bytes(of(1)) == -1);
}

TEST_CASE("scratch adds up, segments repeat and groups count as the batch says") {
  models::StepProgram program;
  SizeRecorder recorder(kTwo, program);
  const SymInt b = value_of(kTwo, StepVariable::micro_batch);
  ProgramBuilder builder(program, 1);
  const models::GroupId group = builder.group("chunks", 0, b * 3);
  builder.open(group, false, value_of(kTwo, StepVariable::grad_accum) - 2);
  builder.op("op", Phase::forward).scratch(SymBytes(b)).scratch(SymBytes(b * b)).scratch(Bytes(1));
  builder.close();
  BatchSizes sizes = recorder.finish();
  CHECK(program.ops[0].scratch == Bytes(7));
  REQUIRE(sizes.write(of(5, 9), program));
  CHECK(program.ops[0].scratch == Bytes(31));
  CHECK(program.segments[0].times == 7);
  CHECK(program.groups[0].count == 15);
}

TEST_CASE(
    "what came again is equal where it is the same expression, not where it is as large now") {
  models::StepProgram program;
  SizeRecorder recorder(kTwo, program);
  const SymInt b = value_of(kTwo, StepVariable::micro_batch);
  ProgramBuilder builder(program, 1);
  builder.open(models::kNoGroup);
  const auto write = [&](SymInt first, SymInt scratch) {
    builder.tensor("first", SymBytes(first), Category::activations);
    builder.tensor("second", SymBytes(b * 5), Category::activations);
    builder.op("op", Phase::forward).scratch(SymBytes(scratch));
  };
  std::array<ProgramBuilder::Place, 4> at;
  at[0] = builder.place();
  write(b * 4, b);
  at[1] = builder.place();
  write(8, b);
  builder.note_repeat(at[0], at[1]);
  at[2] = builder.place();
  write(8, 2);
  builder.note_repeat(at[1], at[2]);
  builder.close();
  const EqualSizes equal = recorder.finish().equal();
  CHECK(equal.tensors == std::vector<models::TensorId>{0, 1, 2, 1, 2, 1});
  REQUIRE(equal.ops.size() == 1);  // the third op's scratch is 2 in all batches
  CHECK(equal.ops[0] == EqualSizes::Blocks{0, 1, 2});
}

TEST_CASE("nobody is told of another program, nor of another batch") {
  models::StepProgram program, other;
  SizeRecorder recorder(kTwo, program);
  CHECK(SizeRecorder::of(program) == &recorder);
  CHECK(SizeRecorder::of(other) == nullptr);
  CHECK(value_of(of(3), StepVariable::micro_batch).is(3));
  CHECK(!value_of(kTwo, StepVariable::micro_batch).is(2));
}

// AdamW's two states of a share of 16,384 values: 4 bytes a value, whatever the ranks. In blocks of
// 256 (torchao, from 4,096 on; bitsandbytes likewise) a limit decides: for so many ranks alone.
TEST_CASE(
    "what an optimizer keeps of a share is an expression of the ranks, where no limit decides") {
  const auto kept_by = [](models::Optimizer optimizer, std::int64_t ranks) -> std::int64_t {
    models::StepProgram program;
    SizeRecorder recorder(kTwo, program, 2);
    ProgramBuilder builder(program, 1);
    models::Strategy strategy;
    strategy.optimizer = optimizer;
    const pytorch::Processors gpu;
    pytorch::OptimizerStates states(builder, strategy, gpu);
    const pytorch::OwnPart share(models::SteppedTensor{}, ceil_divide(16'384, value_of_shards(2)));
    states.declare(models::kNoGroup, states.kept_of(share));
    BatchSizes sizes = recorder.finish();
    if (!sizes.write(kTwo, program, ranks)) return -1;
    return program.tensors[0].bytes.value();
  };
  CHECK(kept_by(models::Optimizer::adamw, 2) == 4 * 8'192);
  CHECK(kept_by(models::Optimizer::adamw, 5) == 4 * 3'277);
  CHECK(kept_by(models::Optimizer::adamw, 32'768) == 4);
  for (const models::Optimizer in_blocks :
       {models::Optimizer::torchao_adam8bit, models::Optimizer::adam8bit}) {
    CHECK(kept_by(in_blocks, 2) == 8'192);
    CHECK(kept_by(in_blocks, 4) == -1);
    CHECK(kept_by(in_blocks, 5) == -1);
  }
}

// In bytes: a tensor of 10 b, an op's scratch of 30 b; and fixed ones.
TEST_CASE("the largest size is a batch's own or one that no batch changes, a tensor's or scratch") {
  const auto largest = [](std::int64_t tensor, std::int64_t scratch, std::int64_t rows) {
    models::StepProgram program;
    SizeRecorder recorder(kTwo, program);
    ProgramBuilder builder(program, 1);
    const SymInt b = value_of(kTwo, StepVariable::micro_batch);
    builder.open(models::kNoGroup);
    const auto x = builder.tensor("x", SymBytes(b * 10), Category::activations);
    const auto fixed = builder.tensor("fixed", Bytes(tensor), Category::parameters);
    builder.op("grows", Phase::forward).write(x).scratch(SymBytes(b * 30));
    builder.op("stays", Phase::forward).write(fixed).scratch(Bytes(scratch));
    builder.close();
    BatchSizes sizes = recorder.finish();
    REQUIRE(sizes.write(of(rows), program));
    return sizes.largest().value();
  };
  CHECK(largest(50, 70, 2) == 70);
  CHECK(largest(90, 70, 2) == 90);
  CHECK(largest(50, 40, 2) == 60);
  CHECK(largest(90, 70, 5) == 150);
}
