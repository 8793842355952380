// Our own runtime's arena as the planner replays it, and the step with every micro-batch written
// out.
#include "planner/memory/arena_replay.h"

#include <doctest/doctest.h>

#include <map>
#include <random>

#include "models/decisions/workspace.h"
#include "tests/planner/plimsoll_draw.h"

using namespace plimsoll;
using namespace plimsoll::planner;
using models::Access;
using models::kNoTensor;
using models::StepProgram;

namespace {

// The rule word by word, over a map of what is in use: slow, and nothing can be merged wrongly.
class Naive {
 public:
  std::int64_t place(std::int64_t bytes) {
    const std::int64_t length = (bytes + 255) / 256 * 256;
    std::int64_t at = 0;
    for (const auto& [begin, end] : used_) {
      if (begin - at >= length) break;
      at = end;
    }
    used_[at] = at + length;
    reserved = std::max(reserved, at + length);
    return at;
  }
  void release(std::int64_t address) { used_.erase(address); }
  std::int64_t reserved = 0;

 private:
  std::map<std::int64_t, std::int64_t> used_;
};

// Reserved bytes of the unrolled step with the naive arena.
std::int64_t naive_reserved(const StepProgram& program, const Timeline& timeline) {
  Naive arena;
  std::map<std::size_t, std::int64_t> addresses;
  const auto bytes = [&](std::size_t life) {
    return program.tensors[static_cast<std::size_t>(timeline.lifetimes[life].tensor)].bytes.value();
  };
  const auto steps = static_cast<std::int64_t>(timeline.steps.size());
  for (std::size_t i = 0; i < timeline.lifetimes.size(); ++i)
    if (timeline.lifetimes[i].death == steps) arena.place(bytes(i));
  for (std::int64_t step = 0; step < steps; ++step) {
    for (const std::size_t i : timeline.touched)
      if (timeline.lifetimes[i].birth == step) addresses[i] = arena.place(bytes(i));
    for (std::size_t i = 0; i < timeline.lifetimes.size(); ++i)
      if (timeline.lifetimes[i].death == step) arena.release(addresses.at(i));
  }
  return arena.reserved;
}

}  // namespace

TEST_CASE("first fit: the lowest hole that is large enough, blocks of 256 bytes") {
  FirstFit arena;
  CHECK(arena.place(1) == 0);
  CHECK(arena.place(257) == 256);  // 512 bytes
  CHECK(arena.place(256) == 768);
  CHECK(arena.place(256) == 1024);
  arena.release(256, 257);
  CHECK(arena.place(512) == 256);  // fits exactly
  arena.release(256, 512);
  CHECK(arena.place(256) == 256);  // the lower half
  CHECK(arena.place(512) == 1280);  // 256 are left in the hole: at the end
  CHECK(arena.reserved() == 1792);
}

TEST_CASE("first fit: holes that touch are one, and what is free at the end is no hole") {
  FirstFit arena;
  for (int i = 0; i < 4; ++i) CHECK(arena.place(256) == 256 * i);
  arena.release(0, 256);
  arena.release(512, 256);
  arena.release(256, 256);  // 0 … 768 is free
  CHECK(arena.place(700) == 0);
  arena.release(0, 700);
  arena.release(768, 256);  // all is free: the end is 0 again
  CHECK(arena.place(4096) == 0);
  CHECK(arena.reserved() == 4096);
}

TEST_CASE("first fit places random requests where a search of all addresses does") {
  std::mt19937 random(7);
  const auto pick = [&](std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(1, most)(random);
  };
  FirstFit arena;
  Naive naive;
  std::vector<std::pair<std::int64_t, std::int64_t>> live;
  for (int i = 0; i < 20'000; ++i) {
    if (live.empty() || pick(100) < 52) {
      const std::int64_t bytes = pick(5000);
      live.emplace_back(arena.place(bytes), bytes);
      REQUIRE(naive.place(bytes) == live.back().first);
    } else {
      const auto victim =
          static_cast<std::size_t>(pick(static_cast<std::int64_t>(live.size())) - 1);
      arena.release(live[victim].first, live[victim].second);
      naive.release(live[victim].first);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
    }
  }
  CHECK(arena.reserved() == naive.reserved);
}

TEST_CASE("an op's tensors are placed in the order of its operands, its dead given back after it") {
  // persistent p (256). Op 0 writes b (512), then a (256); op 1 reads b, writes c (256); op 2 reads
  // a and c, writes d (512).
  //   p 0, b 256, a 768 | c 1024, b dies | d 256: the hole of b | reserved 1280
  StepProgram p;
  p.tensors = {{"a", 256_B},
               {"b", 512_B},
               {"c", 256_B},
               {"d", 512_B},
               {.name = "p", .bytes = 256_B, .residency = models::Residency::persistent}};
  p.operands = {{1, kNoTensor, 0, Access::write}, {0, kNoTensor, 0, Access::write},
                {1, kNoTensor, 0, Access::read},  {2, kNoTensor, 0, Access::write},
                {0, kNoTensor, 0, Access::read},  {2, kNoTensor, 0, Access::read},
                {3, kNoTensor, 0, Access::write}};
  p.ops = {{"0", 0, 2, 0_B}, {"1", 2, 2, 0_B}, {"2", 4, 3, 0_B}};
  p.segments = {{0, 3, models::kNoGroup, false, 1}};
  CHECK(arena_reserved(p, unroll(p)) == 1280_B);
  // a before b: p 0, a 256, b 512 | c 1024, b dies | d 512: the same; with d of 513 bytes it does
  // not fit under c: 1280 + 768.
  std::swap(p.operands[0], p.operands[1]);
  CHECK(arena_reserved(p, unroll(p)) == 1280_B);
  p.tensors[3].bytes = 513_B;
  CHECK(arena_reserved(p, unroll(p)) == 2048_B);
}

TEST_CASE("reserved bytes of plimsoll's steps are those of a search of all addresses") {
  int planned_steps = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    CAPTURE(seed);
    plimsoll_stack::Draw draw(seed);
    const models::ModelSpec model = draw.model();
    const models::Strategy strategy = draw.strategy(model);
    const models::Batch batch = draw.batch();
    plimsoll_stack::Planned planned;
    try {
      planned = plimsoll_stack::planned(model, strategy, batch);
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::bad_input);
      continue;
    }
    ++planned_steps;
    const Bytes reserved = arena_reserved(planned.program, planned.timeline);
    REQUIRE(reserved.value() == naive_reserved(planned.program, planned.timeline));
    REQUIRE(reserved >= planned.peak.bytes);
    // Micro-batches after the second find the same blocks in use.
    REQUIRE(arena_reserved(planned.program, unroll(planned.program, Repeats::all)) == reserved);
  }
  CHECK(planned_steps > 120);
}

TEST_CASE("every micro-batch written out: the same peak, the same ops as if none were equal") {
  int repeated = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    plimsoll_stack::Draw draw(seed);
    const models::ModelSpec model = draw.model();
    const models::Strategy strategy = draw.strategy(model);
    models::Batch batch = draw.batch();
    batch.grad_accum = draw.pick(4, 6);
    plimsoll_stack::Planned planned;
    try {
      planned = plimsoll_stack::planned(model, strategy, batch);
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::bad_input);
      continue;
    }
    const Timeline all = unroll(planned.program, Repeats::all);
    REQUIRE(static_cast<std::int64_t>(all.steps.size()) == ops_in_all(planned.program));
    REQUIRE(all.steps[all.peak_step].high_water == planned.peak.bytes);
    REQUIRE(all.steps[all.peak_step].at == planned.timeline.steps[planned.timeline.peak_step].at);
    REQUIRE(all.steps.back().after == planned.peak.resident);
    // What one micro-batch between the first and the last adds to the ops of three.
    const std::size_t stored = planned.timeline.steps.size();
    const std::size_t middle =
        (all.steps.size() - stored) / static_cast<std::size_t>(batch.grad_accum - 3);
    REQUIRE(all.steps.size() == stored + middle * static_cast<std::size_t>(batch.grad_accum - 3));
    std::size_t begin = 0;
    while (planned.program.segments[all.steps[begin].at.segment].times == 1) ++begin;
    for (std::size_t i = begin; i < begin + middle; ++i) {
      REQUIRE(all.steps[i].at == all.steps[i + middle].at);
      REQUIRE(all.steps[i].high_water == all.steps[i + middle].high_water);
      REQUIRE(all.steps[i].after == all.steps[i + middle].after);
    }
    ++repeated;
  }
  CHECK(repeated > 200);
}
