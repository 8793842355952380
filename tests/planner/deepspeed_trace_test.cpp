// ZeRO-3's trace of modules with a model of 16 small parameters, by hand: which of Transformers'
// modules run in which order, and which parameters they use.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "planner/stacks/deepspeed/trace.h"
#include "tests/planner/deepspeed_tiny.h"

using namespace plimsoll;
using planner::Message;
using planner::deepspeed::Trace;
using tests::Asked;

namespace {

Trace trace_of(const Asked& asked) {
  return planner::deepspeed::trace_of(asked.parts(), asked.layout(), asked.engine(),
                                      asked.question.strategy);
}

}  // namespace

// Parameters by their place; the head's weight is the table's. A layer's modules with parameters
// are its six, in order; a layer that is run again is used once more when its last module, the
// MLP's dropout, has begun to go back.
TEST_CASE("modules use parameters forwards, then backwards, and again where they are recomputed") {
  const auto uses = [](models::RecomputeKind kind) {
    Asked asked(3);
    asked.strategy().recompute.kind = kind;
    return trace_of(asked).uses;
  };
  using Uses = std::vector<std::size_t>;
  Uses forward(16);
  std::iota(forward.begin(), forward.end(), 0);
  const Uses layer(forward.begin() + 2, forward.begin() + 14);
  const Uses back = {12, 13, 10, 11, 8, 9, 6, 7, 4, 5, 2, 3}, ends = {1, 0};
  const auto joined = [](std::initializer_list<Uses> all) {
    Uses out;
    for (const Uses& one : all) out.insert(out.end(), one.begin(), one.end());
    return out;
  };
  const Uses loss = {0, 0, 14, 15};  // the head, forwards and backwards, and the last norm
  CHECK(uses(models::RecomputeKind::none) == joined({forward, loss, back, ends}));
  CHECK(uses(models::RecomputeKind::full) == joined({forward, loss, layer, back, ends}));
}

TEST_CASE("of two layers of which one alone is recomputed, the other is used once each way") {
  for (const models::Recompute& recompute : {models::Recompute{models::RecomputeKind::block, 1},
                                             models::Recompute{models::RecomputeKind::nth, 2}}) {
    Asked asked(3, 3, 2);
    asked.strategy().recompute = recompute;
    const std::vector<std::size_t> uses =
        planner::deepspeed::trace_of(asked.parts(), asked.layout(), asked.engine(),
                                     asked.question.strategy)
            .uses;
    // Twelve parameters from the third on; the second layer's behind them.
    const auto times = [&](std::size_t parameter) { return std::ranges::count(uses, parameter); };
    const bool first = recompute.kind == models::RecomputeKind::block;
    for (std::size_t p = 2; p < 14; ++p) CHECK(times(p) == (first ? 3 : 2));
    for (std::size_t p = 14; p < 26; ++p) CHECK(times(p) == (first ? 2 : 3));
  }
}

TEST_CASE("a trace counts the elements that were used before each of its steps") {
  Asked asked(3);
  const Trace trace = trace_of(asked);
  std::int64_t before = 0;
  std::size_t next = 0;
  for (std::size_t s = 0; s < trace.steps.size(); ++s) {
    const planner::deepspeed::TraceStep& step = trace.steps[s];
    CHECK(step.before == before);
    CHECK(step.begin == next);
    CHECK(step.last >= s);
    for (; next < step.end; ++next) {
      CHECK(trace.step_of[next] == static_cast<std::int64_t>(s));
      before += trace.parameters[trace.uses[next]].elements;
    }
  }
  CHECK(next == trace.uses.size());
  CHECK(before == 1008 + 88 + 88 + 1008);
  for (const planner::deepspeed::Held& held : trace.parameters)
    CHECK(held.padded == Bytes((held.elements + 2) / 3 * 3 * 4));
}
