// What must hold for every step of our own runtime, over drawn combinations of its options.
#include <doctest/doctest.h>

#include "tests/planner/plimsoll_draw.h"

using namespace plimsoll;
using namespace plimsoll::planner::plimsoll_stack;
using models::Strategy;

namespace {

// Drawn patterns may match nothing, or nothing but a frozen part.
std::optional<Planned> drawn(unsigned seed) {
  Draw draw(seed);
  const models::ModelSpec model = draw.model();
  Strategy strategy = draw.strategy(model);
  const models::Batch batch = draw.batch();
  const Rules rules{draw.of<std::int64_t>({1, models::decisions::kBlock}), draw.pick(0, 1) == 1};
  if (draw.pick(0, 1) == 1)
    strategy.exchange =
        strategy.device == models::Device::cuda ? models::Exchange::threads : models::Exchange::mpi;
  try {
    return planned(model, strategy, batch, rules);
  } catch (const Error& error) {
    REQUIRE(error.kind() == ErrorKind::bad_input);
    return std::nullopt;
  }
}

}  // namespace

TEST_CASE(
    "every step of plimsoll: collapsed equals unrolled, bounds hold, nothing is left behind") {
  int planned_steps = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    CAPTURE(seed);
    const std::optional<Planned> p = drawn(seed);
    if (!p) continue;
    ++planned_steps;
    const planner::Timeline& timeline = p->timeline;
    REQUIRE(p->peak.bytes == timeline.steps[timeline.peak_step].high_water);
    REQUIRE(p->peak.bytes >= p->peak.resident);
    REQUIRE(p->peak.bytes >= p->states.total());
    REQUIRE(timeline.steps.back().after == p->peak.resident);
    // At the gradient norm exactly the states and the fixed blocks are there.
    const std::size_t norm =
        step_named(*p, models::decisions::kGradientNorm, models::Phase::optimizer);
    REQUIRE(timeline.steps[norm].high_water == p->peak.resident + p->states.gradients);
  }
  CHECK(planned_steps > 2500);
}

TEST_CASE("every tensor of plimsoll that is made is used by another op") {
  for (unsigned seed = 0; seed < 1500; ++seed) {
    CAPTURE(seed);
    const std::optional<Planned> p = drawn(seed);
    if (!p) continue;
    for (const planner::Lifetime& life : p->timeline.lifetimes) {
      if (life.birth < 0) continue;
      const std::string name = planner::name_of_tensor(p->program, life.tensor, life.instance);
      CAPTURE(name);
      // Attention's backward makes the gradients of q, k and v together, wanted or not; an
      // adapter's part of a gradient is masked and added in one op.
      const bool together = name.ends_with("attn.q.grad") || name.ends_with("attn.k.grad") ||
                            name.ends_with("attn.v.grad") || name.ends_with("lora_A.input.grad");
      REQUIRE((life.death > life.birth || together));
    }
  }
}

TEST_CASE(
    "pieces of plimsoll's states sum to the whole, with less than 16 bytes a rank and part more") {
  for (unsigned seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const models::ModelSpec model = draw.model();
    Strategy s = fp32_strategy();
    s.precision = draw.of({models::Precision::fp32, models::Precision::bf16_mixed});
    s.data.zero = 3;
    s.gpus = 1;
    const reports::States whole = planned(model, s, {.seq_len = 4}).states;
    s.gpus = draw.pick(2, 9);
    const reports::States piece = planned(model, s, {.seq_len = 4}).states;
    const std::int64_t units = model.decoder->layers + 2;
    const auto padding = [&](Bytes all, Bytes one, std::int64_t blocks) {
      const std::int64_t more = one.value() * s.gpus - all.value();
      return more >= 0 && more < units * s.gpus * 16 * blocks;
    };
    REQUIRE(padding(whole.parameters, piece.parameters, 1));
    REQUIRE(padding(whole.gradients, piece.gradients, 1));
    REQUIRE(padding(whole.optimizer, piece.optimizer, 6));  // up to 12 bytes for a value of 2
  }
}

TEST_CASE("more than three micro-batches of plimsoll change no byte") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const models::ModelSpec model = draw.model();
    Strategy strategy = draw.strategy(model);
    try {
      const Planned three = planned(model, strategy, {.seq_len = 8, .grad_accum = 3});
      const Planned seven = planned(model, strategy, {.seq_len = 8, .grad_accum = 7});
      REQUIRE(three.peak.bytes == seven.peak.bytes);
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::bad_input);
    }
  }
}
