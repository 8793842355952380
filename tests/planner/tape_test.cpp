// What follows from a function of elementary operations: moments, what is kept, the backward.
// Expected blocks are derived by hand from torch's formulas (derivatives.yaml) and were seen in the
// history of torch's allocator (2.11).
#include "planner/stacks/pytorch/tape/rule.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "models/base/error.h"
#include "planner/memory/reserved.h"
#include "planner/program/program_builder.h"
#include "planner/program/timeline.h"

using namespace plimsoll;
using namespace plimsoll::planner::tape;

namespace {

constexpr Extent kRows = 1, kWidth = 2;

// "+0 +1 -0": blocks as they are taken and dropped, numbered as they are met; "u": unpack.
std::string told(const Script& script) {
  std::string out;
  for (const Step& step : script.steps) {
    const bool drops = step.what == Step::What::drop;
    if (step.what == Step::What::unpack) out += "u ";
    if (step.what == Step::What::adopt) out += "=" + std::to_string(step.block) + " ";
    if (step.what == Step::What::take || drops)
      out += (drops ? "-" : "+") + std::to_string(step.block) + " ";
  }
  if (!out.empty()) out.pop_back();
  return out;
}

// Bytes with x of 4096 elements, 4 rows, 16 columns.
Bytes bytes_of(const Lowered& lowered, const Moment& moment) {
  constexpr std::array<std::int64_t, 3> counts{4096, 4, 16};
  Bytes all;
  for (std::size_t i = 0; i < moment.size(); ++i)
    all += storage(Count(counts[lowered.sizes[i].extent]), lowered.sizes[i].dtype) * moment[i];
  return all;
}
Bytes scratch_of(const Lowered& lowered, std::size_t op) {
  Bytes most(0);
  for (const Moment& moment : lowered.ops[op].highest)
    most = std::max(most, bytes_of(lowered, moment));
  return most;
}

std::size_t slots_with(const Lowered& lowered, Role role) {
  return static_cast<std::size_t>(std::ranges::count(lowered.slots, role, &Slot::role));
}

// x²·x in fp32, of a 16-bit x; one product is named.
Function cube(bool grad) {
  Function f;
  const ValueId x = f.given({kAll, DType::bf16}, grad);
  const ValueId wide = f.cast(x, DType::fp32);
  const ValueId square = f.apply(Kind::multiply, wide, wide);
  f.hold(square);
  f.result(f.apply(Kind::multiply, square, wide));
  return f;
}

}  // namespace

TEST_CASE("a forward drops what nobody keeps or names, at its last use") {
  // x; wide, square (held), the result: wide goes with the last product, square at the return.
  CHECK(told(forward(cube(false), true, false)) == "+1 +2 +3 -1 -2");
  // Autograd keeps both factors of the last product.
  CHECK(told(forward(cube(true), true, false)) == "+1 +2 +3");
  // In a checkpoint's first forward it keeps nothing.
  CHECK(told(forward(cube(true), false, false)) == "+1 +2 +3 -1 -2");
  // Recomputation ends where the last product's factors are packed, before it runs.
  CHECK(told(forward(cube(true), true, true)) == "+1 +2");
}

TEST_CASE("a backward frees what was kept with the last operation that reads it") {
  // 0: d, 1: the square, 2: wide. The product's gradients of wide (3) and the square (4); the
  // square and d go. Then the square's two of wide, which goes: both are added to 3 in place. At
  // last x's.
  const Script script = backward(cube(true), {});
  CHECK(told(script) == "u +3 +4 -1 -0 +5 +6 -2 -4 -6 -5 +7 -3");
  const auto last = std::ranges::find(script.blocks, Role::d_given, &Block::role);
  REQUIRE(last != script.blocks.end());
  CHECK(last - script.blocks.begin() == 7);
  CHECK(last->size == Size{kAll, DType::bf16});
}

TEST_CASE("a sum down to a parameter's extent is the parameter's gradient, and stays or dies") {
  Function f;
  const ValueId x = f.given({kAll, DType::fp32}, false);
  const ValueId weight = f.parameter({kWidth, DType::fp32}, true);
  f.result(f.apply(Kind::multiply, weight, x));
  // d · x, its sum; the product goes, then d.
  CHECK(told(backward(f, {})) == "u +2 +3 -2 -1 -0");
  Surroundings added;
  added.keeps_gradients = false;
  CHECK(told(backward(f, added)) == "u +2 +3 -2 -1 -0 -3");
  const Lowered lowered = lower(backward(f, {}));
  REQUIRE(lowered.ops.size() == 1);
  CHECK(lowered.ops[0].unpacks);
  CHECK(slots_with(lowered, Role::d_parameter) == 1);
  CHECK(scratch_of(lowered, 0) == 16384_B);  // the product, beside d, x and the sum
}

TEST_CASE("what flows past is the sum's block: the new gradient is added to it in place") {
  Function f;
  const ValueId x = f.given({kAll, DType::fp32}, true);
  f.result(f.apply(Kind::tanh, x));
  Surroundings flows;
  flows.flows = true;
  // 0: what flows past, 1: d; tanh's own gradient; d and the kept result go; the sum is block 0.
  CHECK(told(backward(f, flows)) == "u +3 -2 -1 =4 -3");
}

TEST_CASE("an op ends where a caller's value is read for the last time") {
  Function f;  // x·cos + (-x)·sin
  const ValueId x = f.given({kAll, DType::fp32}, true);
  const ValueId cos = f.given({kAll, DType::fp32}, false);
  const ValueId sin = f.given({kAll, DType::fp32}, false);
  const ValueId first = f.apply(Kind::multiply, x, cos);
  f.result(f.apply(Kind::add, first, f.apply(Kind::multiply, f.apply(Kind::negate, x), sin)));
  const Lowered lowered = lower(backward(f, {}));
  // d·sin; then its negative and d·cos.
  REQUIRE(lowered.ops.size() == 2);
  CHECK(slots_with(lowered, Role::crossing) == 1);
  CHECK(slots_with(lowered, Role::given) == 2);
  CHECK(scratch_of(lowered, 0) == 0_B);
}

TEST_CASE("a cast whose backward comes before what was kept is an op of its own") {
  Function f;
  const ValueId x = f.given({kAll, DType::bf16}, true);
  f.result(f.cast(f.apply(Kind::tanh, f.cast(x, DType::fp32)), DType::bf16));
  const Lowered lowered = lower(backward(f, {}));
  REQUIRE(lowered.ops.size() == 2);
  CHECK_FALSE(lowered.ops[0].unpacks);  // a checkpoint is not run again for it
  CHECK(lowered.ops[1].unpacks);
}

TEST_CASE("Llama's norm: the highest moments of torch's own operations") {
  Function f;
  const ValueId x = f.given({kAll, DType::bf16}, true);
  const ValueId weight = f.parameter({kWidth, DType::bf16}, true);
  const ValueId wide = f.cast(x, DType::fp32);
  const ValueId mean = f.mean(f.apply(Kind::power, wide), kRows);
  const ValueId root = f.apply(Kind::rsqrt, f.apply(Kind::add_number, mean));
  const ValueId normalized = f.apply(Kind::multiply, wide, root);
  f.hold(mean);
  f.hold(normalized);
  f.result(f.apply(Kind::multiply, weight, f.cast(normalized, DType::bf16)));
  CHECK(f.kept().size() == 3);  // x in fp32, 1/rms, the normalized values in 16 bits
  // F = 16384, R = 16, S = 8192. Saving: at the result, x·r and the mean are above the operands.
  CHECK(scratch_of(lower(forward(f, true, false)), 0) == 16400_B);
  // Not saving: x32 goes at x·r, where F + F + 2 R stand; the result needs no more.
  CHECK(scratch_of(lower(forward(f, false, false)), 0) == 24608_B);
  // Backward, above d, x32, r, the normalized values, weight.grad and x's gradient: at the mean's
  // gradient four F beside x32 and the first product; d, the normalized values and r are gone.
  const Lowered backward_of = lower(backward(f, {}));
  REQUIRE(backward_of.ops.size() == 1);
  CHECK(scratch_of(backward_of, 0) == 16384_B * 5 - 8192_B * 3 - 16_B);
}

TEST_CASE(
    "a function that keeps more than its writer has room for is an error, not a lost tensor") {
  Function f;
  ValueId x = f.given({kAll, DType::fp32}, true);
  for (std::size_t i = 0; i <= kMostKept; ++i) x = f.apply(Kind::tanh, x);
  f.result(x);
  CHECK_THROWS_AS(Rule{f}, Error);
}

TEST_CASE("a sum made in place takes over the block of what had arrived, where that dies") {
  const auto reserved = [](bool dies) {
    models::StepProgram program;
    planner::ProgramBuilder b(program, 512);
    planner::ScratchBlocks blocks;
    b.keep_blocks(&blocks);
    b.open(models::kNoGroup);
    const auto flowing = b.tensor("flowing", 20_MiB, models::Category::temporaries);
    const auto sum = b.tensor("sum", 20_MiB, models::Category::temporaries);
    b.op("first", models::Phase::backward).write(flowing);
    b.op("add", models::Phase::backward).read(flowing).write(sum);
    planner::BlockEvents events;
    events.adopt(sum, flowing);
    b.blocks(std::move(events));
    b.op("last", models::Phase::backward).read(sum).read(dies ? models::kNoTensor : flowing);
    b.close();
    planner::Start start;
    start.set_scratch(std::move(blocks));
    return planner::replay(program, planner::unroll(program), {}, start, {}).reserved;
  };
  CHECK(reserved(true) == 20_MiB);
  CHECK(reserved(false) == 40_MiB);
}

TEST_CASE(
    "where each operation is an op, products say their shapes and a frame's return is another") {
  Function f;
  f.part_operations(true);
  const ValueId a = f.given({kAll, DType::bf16}, true), b = f.given({kRows, DType::bf16}, false);
  const ValueId product = f.bmm(Kind::bmm, {a, b, kNone}, kWidth, {kAll, kRows, kWidth, 0});
  const ValueId dropped = f.dropout(f.apply(Kind::scale, product), ".mask");
  f.leave(b);
  f.leave(product);
  f.result(f.copy(dropped));
  // product, its scale, the dropout, the return that ends the product, the copy.
  const Rule rule(std::move(f));
  const Lowered& forward = rule.forward(true, false);
  CHECK(forward.ops.size() == 5);
  CHECK(forward.ops[0].multiplied.size() == 1);
  CHECK(forward.ops[0].part.value == product);
  CHECK(forward.ops[1].part.fused);
  CHECK(forward.ops[3].writes.empty());
  CHECK(forward.ops[3].kernels == 0);
  // What keeps its mask alone ends there; the frames return all the same.
  CHECK(rule.forward(true, true).ops.size() == 4);
  // Unkept, the mask is gone before its op ends.
  CHECK(slots_with(rule.forward(true, false), Role::kept) == 1);
  CHECK(slots_with(rule.forward(false, false), Role::kept) == 0);
  // The copy passes its gradient on; b, which is kept, gets none.
  const Lowered& backward = rule.backward({});
  REQUIRE(backward.ops.size() == 3);
  CHECK(backward.ops[0].part.value == dropped);
  REQUIRE(backward.ops[2].multiplied.size() == 1);
  CHECK(backward.ops[2].multiplied[0].shape == std::array<Extent, 4>{kAll, kWidth, kRows, 0});
  CHECK(backward.oldest == 2);
  CHECK(slots_with(backward, Role::d_given) == 1);
}

// clamp_backward makes a zero, a comparison with each bound and the gradient; sigmoid's reads its
// result alone. Of a 16-bit x: 2 bytes, booleans of 4,096, the gradient of 8,192.
TEST_CASE("a clamp keeps what went in, and compares it with each bound again") {
  constexpr Extent kOne = 3;
  const auto clamp = [&](Kind kind) {
    Function f;
    const ValueId x = f.given({kAll, DType::bf16}, true);
    const ValueId wide = f.apply(Kind::scale, x);
    f.result(f.clamp(kind, wide, kOne));
    return f;
  };
  CHECK(told(forward(clamp(Kind::clamp), true, false)) == "+1 +2");
  CHECK(clamp(Kind::clamp).kept() == std::vector<ValueId>{1});
  // Block 0 is the result's gradient, 1 what was kept.
  CHECK(told(backward(clamp(Kind::clamp_above), {})) == "u +2 +3 +4 -2 -3 -1 -0 +5 -4");
  CHECK(told(backward(clamp(Kind::clamp), {})) == "u +2 +3 +4 +5 -2 -3 -4 -1 -0 +6 -5");
  Function f;
  f.result(f.apply(Kind::sigmoid, f.given({kAll, DType::bf16}, true)));
  CHECK(f.kept() == std::vector<ValueId>{1});
  CHECK(told(backward(f, {})) == "u +2 -1 -0");
}

// Two parts joined, and one of them handed on by a sum: its gradient is a view of the whole's,
// which is as long, and no sum down to the part is made; the other one's column is summed to a
// parameter.
TEST_CASE("a table of rules has those of its own numbers, and no other") {
  const auto make = [] {
    Function f;
    f.result(f.apply(Kind::negate, f.given({kAll, DType::bf16}, false)));
    return f;
  };
  Rules<4> rules;
  CHECK(&rules.find(3, make) == &rules.find(3, make));
  CHECK(&rules.find(3, make) != &rules.find(2, make));
  CHECK_THROWS_AS(rules.find(4, make), Error);
}

TEST_CASE("a part's gradient that is handed on stays a view of the whole's") {
  Function f;
  const ValueId a = f.given({kAll, DType::fp32}, true);
  const ValueId b = f.given({kAll, DType::fp32}, false);
  const ValueId column = f.parameter({kWidth, DType::fp32}, true);
  const ValueId sum = f.apply(Kind::add, a, b);
  const ValueId rows = f.resize(Kind::expand, column, kRows);
  const ValueId joined = f.concatenate(sum, rows, 3);
  f.result(f.apply(Kind::scale, joined));
  const Script script = backward(f, {});
  // The whole's (1) of the result's (0); the column's sum (2); nothing else.
  CHECK(told(script) == "+1 -0 +2");
  CHECK(script.blocks[2].role == Role::d_parameter);
}

// An op ends where what autograd kept is first read, were it the second thing that is done.
TEST_CASE("what is made in front of the first read of what was kept is an op of its own") {
  Script script;
  script.blocks = {{{kAll, DType::fp32}, Role::scratch}, {{kAll, DType::fp32}, Role::result}};
  using enum Step::What;
  script.steps = {{take, 0}, {unpack}, {take, 1}, {drop, 0}};
  const Lowered lowered = lower(script);
  REQUIRE(lowered.ops.size() == 2);
  CHECK_FALSE(lowered.ops[0].unpacks);
  CHECK(lowered.ops[1].unpacks);
  CHECK(slots_with(lowered, Role::crossing) == 1);
}

// What a function returns beside its result may be a view: who holds that holds its memory.
TEST_CASE("a view that is returned beside the result has its owner's place") {
  Function f;
  const ValueId x = f.given({kAll, DType::bf16}, false);
  const ValueId whole = f.apply(Kind::scale, x);
  const ValueId part = f.slice(whole, kRows);
  f.also_result(part);
  f.result(f.apply(Kind::scale, part));
  const Rule rule(std::move(f));
  const Lowered& lowered = rule.forward(false, false);
  REQUIRE(slots_with(lowered, Role::result) == 2);
  std::vector<int> also;
  for (const Slot& slot : lowered.slots)
    if (slot.role == Role::result) also.push_back(slot.also);
  CHECK(also == std::vector<int>{0, -1});
}

// index_put_with_sort_kernel (ATen/native/cuda/Indexing.cu, torch 2.11): the gradient is a copy of
// zeros, into which the rows go. Each axis's places are compared with both of its ends, one value
// and one boolean each time; of the second axis they are multiplied with its stride before they
// join the first's; then they and their order are sorted beside what went in.
TEST_CASE("the gradient of chosen rows is put into a copy of zeros, its places sorted before") {
  constexpr Extent kOne = 3, kSort = 4;
  const auto chosen = [&](bool two_axes) {
    Function f;
    const ValueId x = f.given({kAll, DType::bf16}, true);
    const ValueId places = f.given({kRows, DType::int64}, false);
    const ValueId rows = f.index(x, places, kWidth, {kOne, kSort});
    if (two_axes) f.also_along(f.given({kRows, DType::int64}, false));
    f.result(rows);
    return backward(f, {});
  };
  const Script script = chosen(false);
  // 0: d, 1: the places; zeros, the copy; two ends; offsets, which the first of the sorted takes
  // the place of; three more of these, and the sort's own.
  CHECK(told(script) ==
        "u +2 +3 +4 +5 -5 -4 +6 +7 -7 -6 +8 +9 -8 +10 +11 +12 +13 -9 -10 -11 -12 -13 -2 -1 -0");
  CHECK(script.blocks[4].size == Size{kOne, DType::int64});
  CHECK(script.blocks[5].size == Size{kOne, DType::boolean});
  CHECK(script.blocks[13].size == Size{kSort, DType::boolean});
  // Zeros are written, and copied; the rows are read, and written.
  const Size whole{kAll, DType::bf16}, part{kWidth, DType::bf16};
  std::vector<std::pair<Size, bool>> moved;
  for (const Moved& one : script.moved) moved.emplace_back(one.size, one.launches);
  CHECK(moved == std::vector<std::pair<Size, bool>>{
                     {whole, true}, {whole, true}, {whole, false}, {part, true}, {part, false}});
  // The second axis's: 11 to 14 are its ends, 15 and 16 its places and those multiplied.
  CHECK(told(chosen(true)) ==
        "u +3 +4 +5 +6 -6 -5 +7 +8 -8 -7 +9 +10 -9 +11 +12 -12 -11 +13 +14 -14 -13 +15 +16 -15 -16 "
        "+17 +18 +19 +20 -10 -17 -18 -19 -20 -3 -1 -2 -0");
}
