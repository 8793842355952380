// Room that is real: what a step needs is the same on every card, and a plan that fits only because
// its allocator gives cached memory back is borderline.
#include "planner/memory/fitting.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "models/run_names.h"
#include "planner/plan.h"

using namespace plimsoll;
using models::RecomputeKind;
using models::Stack;
using reports::Verdict;

namespace {

template <class T>
T one_of(std::mt19937& draw, std::initializer_list<T> choices) {
  return choices.begin()[draw() % choices.size()];
}

planner::Question drawn(std::mt19937& draw) {
  planner::Question question;
  question.cluster.gpu = models::find_gpu("a100-40gb");
  question.remedies = false;
  question.detail = planner::Detail::none;
  models::Strategy& s = question.strategy;
  s.stack = one_of(draw, {Stack::pytorch, Stack::pytorch, Stack::deepspeed, Stack::plimsoll});
  s.gpus = one_of<std::int64_t>(draw, {1, 2, 8});
  s.data.zero = s.gpus == 1 ? 0 : one_of(draw, {0, 1, 2, 3});
  s.recompute.kind = one_of(draw, {RecomputeKind::none, RecomputeKind::full});
  s.loss = one_of(draw, {models::Loss::full, models::Loss::chunked});
  if (draw() % 3 == 0) s.lora = models::Lora{.rank = 8, .targets = {"all-linear"}};
  question.batch.seq_len = one_of<std::int64_t>(draw, {512, 1024});
  question.batch.micro_batch = one_of<std::int64_t>(draw, {1, 3, 8});
  question.batch.grad_accum = one_of<std::int64_t>(draw, {1, 2});
  return question;
}

// Larger is worse.
int badness(Verdict verdict) {
  return verdict == Verdict::fits ? 0 : verdict == Verdict::borderline ? 1 : 2;
}

}  // namespace

TEST_CASE("with more memory a verdict never gets worse, and what is needed stays the same") {
  std::mt19937 draw(7);
  int seen[3] = {0, 0, 0}, questions = 0;
  for (const char* name : {"smollm2-135m", "qwen2.5-0.5b", "gpt2"}) {
    const models::ModelSpec model = models::catalog_model(name);
    for (int i = 0; i < 25; ++i) {
      planner::Question question = drawn(draw);
      question.model = &model;
      reports::Plan wide;
      try {
        wide = planner::plan(question);
      } catch (const Error&) {
        continue;  // refused by its stack
      }
      ++questions;
      int before = 2;
      for (std::int64_t permille = 600; permille <= 1060; permille += 20) {
        question.cluster.memory = Bytes(wide.device.value() / 1000 * permille);
        const reports::Plan plan = planner::plan(question);
        CAPTURE(i);
        CAPTURE(permille);
        REQUIRE(plan.device == wide.device);
        REQUIRE(plan.reserved == wide.reserved);
        REQUIRE(plan.peak == wide.peak);
        REQUIRE(badness(plan.verdict) <= before);
        REQUIRE(plan.fits == (plan.verdict == Verdict::fits));
        if (question.strategy.stack != Stack::plimsoll)
          REQUIRE(plan.flushing.has_value() == (plan.verdict == Verdict::borderline));
        if (plan.flushing) {
          REQUIRE(plan.flushing->reserved + plan.overhead.total() <= *plan.usable);
          REQUIRE(plan.flushing->reserved >= plan.peak);
          REQUIRE(*plan.time.step_seconds >= *wide.time.step_seconds);
          if (plan.flushing->flushes > 0)
            REQUIRE(*plan.time.step_seconds > *wide.time.step_seconds);
        }
        before = badness(plan.verdict);
        ++seen[before];
      }
      REQUIRE(before == 0);  // 6 % more than is needed
    }
  }
  CHECK(questions > 50);
  CHECK(seen[0] > 100);
  CHECK(seen[1] > 100);
  CHECK(seen[2] > 100);
}

// 79.2 GiB once left 1.22 MiB of room at the high end, and 80 GiB none: the allocator, nearer its
// limit, had flushed.
TEST_CASE("the room that a 405B step leaves does not come from flushing") {
  const models::ModelSpec model = models::catalog_model("llama-3.1-405b");
  planner::Question question;
  question.model = &model;
  question.remedies = false;
  question.cluster.gpu = models::find_gpu("h100-sxm-80gb");
  question.strategy.gpus = 512;
  question.strategy.data.zero = 3;
  question.strategy.optimizer_impl = models::OptimizerImpl::fused;
  question.strategy.recompute.kind = RecomputeKind::full;
  question.batch.seq_len = 8192;
  const reports::Plan plan = planner::plan(question);
  question.cluster.memory = 80_GiB;
  const reports::Plan larger = planner::plan(question);
  CHECK(plan.device == larger.device);
  CHECK(plan.high_end->device() == larger.high_end->device());
  CHECK(plan.high_end->fits == (plan.high_end->device() <= *plan.usable));
  CHECK_FALSE(plan.high_end->fits);
}

// In MiB: 40 are taken and given back on one stream, then 60 on another, which cannot use them.
// With room for 100 nothing is given back; with 60 the cached segment goes first; with 59 it does
// not run.
TEST_CASE("a step that runs only by flushing is borderline, down to what it takes then") {
  models::StepProgram program;
  program.tensors = {{.name = "first", .bytes = 40_MiB},
                     {.name = "second", .bytes = 60_MiB, .stream = models::Stream::gather}};
  program.operands = {{.tensor = 0, .access = models::Access::write},
                      {.tensor = 1, .access = models::Access::write}};
  program.ops = {{.name = "a", .operand_begin = 0, .operand_count = 1},
                 {.name = "b", .operand_begin = 1, .operand_count = 1}};
  program.segments = {{.op_begin = 0, .op_end = 2}};
  planner::StackStep step;
  step.program = program;
  step.caching_allocator = true;
  const planner::Timeline timeline = planner::unroll(step.program);
  const planner::Peak peak = planner::PeakFinder().find(step.program);
  const auto flushing = [&](Bytes usable) {
    planner::Replays replays;
    const planner::Capacity capacity{usable, usable};
    const planner::FrameworkOverhead overhead;
    const planner::Fitting fitting{step, timeline, peak, capacity, overhead, replays};
    CHECK(fitting.needed().reserved == 100_MiB);
    CHECK(fitting.fits(planner::Overheads::typical) == (usable >= 100_MiB));
    return fitting.flushing();
  };
  CHECK_FALSE(flushing(100_MiB).has_value());
  CHECK_FALSE(flushing(59_MiB).has_value());
  for (const Bytes usable : {60_MiB, 98_MiB}) {
    const auto found = flushing(usable);
    REQUIRE(found.has_value());
    CHECK(found->reserved == 60_MiB);
    // Each step: 60 MiB are given back for 40, and 40 for 60.
    CHECK(found->calls.flushes == 2);
    CHECK(found->calls.frees == 2);
    CHECK(found->calls.mallocs == 2);
    CHECK(found->calls.malloced == 100_MiB);
  }
}

// Tensors of 2 to 60 MiB on two streams, each of which one op writes and a later one reads.
models::StepProgram drawn_program(std::mt19937& draw, int ops = 12) {
  models::StepProgram program;
  std::vector<std::vector<models::Operand>> of_op(ops);
  for (int i = 0; i < ops; ++i) {
    const models::Stream stream = draw() % 2 ? models::Stream::gather : models::Stream::compute;
    program.tensors.push_back(
        {.name = "t", .bytes = Bytes(2_MiB) * (1 + draw() % 30), .stream = stream});
    of_op[i].push_back({.tensor = i, .access = models::Access::write});
    of_op[i + draw() % (ops - i)].push_back({.tensor = i, .access = models::Access::read});
  }
  for (const auto& operands : of_op) {
    program.ops.push_back({.name = "op",
                           .operand_begin = static_cast<std::uint32_t>(program.operands.size()),
                           .operand_count = static_cast<std::uint32_t>(operands.size())});
    program.operands.insert(program.operands.end(), operands.begin(), operands.end());
  }
  program.segments = {{.op_begin = 0, .op_end = static_cast<std::uint32_t>(ops)}};
  return program;
}

// Which requests were granted, and what was reserved before each.
std::vector<std::pair<bool, Bytes>> course(const models::StepProgram& program, Bytes limit,
                                           planner::Reserved& made) {
  std::vector<std::pair<bool, Bytes>> all;
  made = planner::replay(
      program, planner::unroll(program), {.limit = limit}, {}, {},
      [&](const planner::Allocation& asked) { all.emplace_back(asked.granted, asked.reserved); });
  return all;
}

TEST_CASE("up to the limit that a replay names it would be the same, and from there on another") {
  std::mt19937 draw(3);
  int refused = 0, flushed = 0;
  for (int i = 0; i < 20; ++i) {
    const models::StepProgram program = drawn_program(draw);
    planner::Reserved made, other;
    for (Bytes limit = planner::PeakFinder().find(program).bytes;;) {
      const auto here = course(program, limit, made);
      refused += !made.fits;
      flushed += made.fits && made.flushed;
      if (!made.next_limit) break;
      REQUIRE(*made.next_limit > limit);
      REQUIRE(course(program, *made.next_limit - Bytes(1), other) == here);
      REQUIRE(other.calls.flushes == made.calls.flushes);
      const bool same_requests = course(program, *made.next_limit, other) == here;
      REQUIRE(!(same_requests && other.reserved == made.reserved &&
                other.calls.flushes == made.calls.flushes));
      limit = *made.next_limit;
    }
  }
  CHECK(refused > 20);
  CHECK(flushed > 20);
}

// All rooms in which fitting.cpp would look whether a step runs by flushing: one in 256 between the
// step's peak and what it needs.
struct Rooms {
  planner::StackStep step;
  planner::Timeline timeline = planner::unroll(step.program);
  planner::Peak peak = planner::PeakFinder().find(step.program);
  std::int64_t part = 1;
  std::vector<planner::Reserved> all;

  explicit Rooms(planner::StackStep of) : step(std::move(of)) {
    const std::int64_t more = (within({}).reserved - peak.bytes).value();
    part = std::max<std::int64_t>(1, more / 256);
    for (std::int64_t i = 0; i * part < more; ++i) all.push_back(within(limit(i)));
  }
  planner::Reserved within(std::optional<Bytes> limit) const {
    return planner::replay(step.program, timeline, {.limit = limit}, step.start, step.allocator);
  }
  Bytes limit(std::size_t i) const {
    return peak.bytes + Bytes(static_cast<std::int64_t>(i) * part);
  }
  std::optional<planner::Reserved> found_on(std::size_t card) const {
    planner::Replays replays;
    const planner::FrameworkOverhead overhead;
    const planner::Capacity capacity{limit(card), limit(card)};
    return planner::Fitting{step, timeline, peak, capacity, overhead, replays}.flushing();
  }
};

// It runs where there is a room up to the card's in which it does, and as it does on the card where
// it runs with all that has. How many do so in a smaller room alone.
int ask_every(const Rooms& rooms, std::size_t cards) {
  const auto same = [](const planner::Reserved& room, const planner::Reserved& found) {
    return room.fits && room.reserved == found.reserved &&
           room.calls.flushes == found.calls.flushes;
  };
  int below_alone = 0;
  for (std::size_t card = 0; card < rooms.all.size(); card += cards) {
    const auto found = rooms.found_on(card);
    const auto end = rooms.all.begin() + static_cast<std::ptrdiff_t>(card) + 1;
    const bool any = std::any_of(rooms.all.begin(), end, [](const auto& r) { return r.fits; });
    CAPTURE(card);
    REQUIRE(found.has_value() == any);
    if (found && rooms.all[card].fits) REQUIRE(same(rooms.all[card], *found));
    if (found)
      REQUIRE(std::any_of(rooms.all.begin(), end, [&](const auto& r) { return same(r, *found); }));
    below_alone += any && !rooms.all[card].fits;
  }
  return below_alone;
}

// fitting.cpp passes over the rooms that a refused replay rules out.
TEST_CASE("no room in which a step runs by flushing is passed over") {
  std::mt19937 draw(11);
  int below_alone = 0;
  for (int i = 0; i < 100; ++i) {
    planner::StackStep step;
    step.program = drawn_program(draw, 24);
    step.caching_allocator = true;
    CAPTURE(i);
    below_alone += ask_every(Rooms(std::move(step)), 1);
  }
  CHECK(below_alone > 300);
}

TEST_CASE("nor is one of a model's step") {
  std::mt19937 draw(5);
  int asked = 0, below_alone = 0;
  for (int i = 0; i < 8; ++i) {
    const models::ModelSpec model = models::catalog_model("smollm2-135m");
    planner::Question question = drawn(draw);
    if (question.strategy.stack == Stack::plimsoll) continue;  // whose arena gives nothing back
    question.model = &model;
    planner::StackStep step;
    try {
      planner::write_step(question, planner::model_parts(model, question.strategy), step);
    } catch (const Error&) {
      continue;  // refused by its stack
    }
    CAPTURE(i);
    below_alone += ask_every(Rooms(std::move(step)), 15);
    ++asked;
  }
  CHECK(asked >= 5);
  CHECK(below_alone > 0);
}

// 40 MiB, which no unlucky step makes more; 50 thousandths of its 41943 whole thousands on top; and
// 3 MiB outside, 5 at their high end.
TEST_CASE("what fits at its typical overheads and at their high end, each to the byte") {
  models::StepProgram program;
  program.tensors = {{.name = "all", .bytes = 40_MiB}};
  program.operands = {{.tensor = 0, .access = models::Access::write}};
  program.ops = {{.name = "a", .operand_begin = 0, .operand_count = 1}};
  program.segments = {{.op_begin = 0, .op_end = 1}};
  planner::StackStep step;
  step.program = program;
  step.caching_allocator = true;
  const planner::Timeline timeline = planner::unroll(step.program);
  const planner::Peak peak = planner::PeakFinder().find(step.program);
  planner::FrameworkOverhead overhead;
  overhead.typical.context = 3_MiB;
  overhead.high.context = 5_MiB;
  overhead.reserved_more = 50;
  const auto with = [&](Bytes usable, auto ask) {
    planner::Replays replays;
    const planner::Capacity capacity{usable, usable};
    return ask(planner::Fitting{step, timeline, peak, capacity, overhead, replays});
  };
  const auto fits = [&](Bytes usable, planner::Overheads overheads) {
    return with(usable, [&](const auto& fitting) { return fitting.fits(overheads); });
  };
  const Bytes typical(43 << 20), high((45 << 20) + 41943 * 50);
  for (const Bytes usable : {typical, high}) {
    const reports::HighEnd end = with(usable, [](const auto& f) { return f.at_high_end(); });
    CHECK(end.reserved == Bytes(44040190));
    CHECK(end.overhead == 5_MiB);
    CHECK(end.device() == high);
    CHECK(end.fits == (usable == high));
  }
  CHECK(fits(typical, planner::Overheads::typical));
  CHECK_FALSE(fits(typical - 1_B, planner::Overheads::typical));
  CHECK(fits(high, planner::Overheads::high_end));
  CHECK_FALSE(fits(high - 1_B, planner::Overheads::high_end));
  // Where a measurement gives a range, that decides, whatever is asked about.
  overhead.range = reports::Range{3_MiB, 4_MiB, "measured"};
  for (const auto overheads : {planner::Overheads::typical, planner::Overheads::high_end}) {
    CHECK(fits(44_MiB, overheads));
    CHECK_FALSE(fits(44_MiB - 1_B, overheads));
  }
}
