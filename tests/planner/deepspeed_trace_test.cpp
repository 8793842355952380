// ZeRO-3's trace of modules with a model of 16 small parameters, by hand: which of Transformers'
// modules run in which order, and which parameters they use.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/storages.h"
#include "planner/stacks/deepspeed/fetches.h"
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

Asked asked_of_llama(int layers) {
  Asked asked(3);
  asked.model = models::read_model(R"({"model_type": "llama", "hidden_size": 8,
      "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 11,
      "max_position_embeddings": 4, "num_hidden_layers": )" +
                                       std::to_string(layers) + "}",
                                   "tiny", "tiny", {});
  return asked;
}

// Blocks that are taken twice, or let go not exactly once.
std::ptrdiff_t unbalanced(const planner::Gathers& gathers) {
  std::map<std::int32_t, std::pair<int, int>> blocks;
  for (const planner::GatherEvent& event : gathers)
    ++(event.goes ? blocks[event.block].second : blocks[event.block].first);
  return std::ranges::count_if(blocks, [](const auto& block) {
    return block.second != std::pair{1, 1};
  });
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

// The head is 11 x 8 as the table is, 360 bytes on three ranks: no other parameter is. A fused loss
// reads it in the forward of the model around the layers. The step that records the trace cannot
// know of that before the loss comes, behind the layers' ten parameters and the last norm; later
// steps gather it ahead of them. Its table is let go, and gathered again by the backward.
TEST_CASE("a head that a fused loss reads is gathered behind the layers in the first step alone") {
  Asked asked = asked_of_llama(1);
  asked.strategy().kernels = models::Kernels::liger;
  asked.strategy().loss = models::Loss::fused;
  asked.options().param_persistence_threshold = 0;
  asked.options().prefetch_bucket_size = 0;
  const auto requests = planner::deepspeed::gather_requests(
      asked.parts(), asked.layout(), asked.engine(), asked.question.strategy, false);
  const auto of_tables = [](const planner::Gathers& from) {
    std::vector<std::int32_t> blocks;
    for (const planner::GatherEvent& event : from)
      if (!event.goes && event.bytes == Bytes(360))
        blocks.push_back(event.block - from.front().block);
    return blocks;
  };
  CHECK(of_tables(requests[0]) == std::vector{0, 11, 22});
  CHECK(of_tables(requests[1]) == std::vector{0, 1});
}

namespace {

// All-linear LoRA of two layers over a packed base (or ""), nothing of which stays gathered.
Asked asked_of_packed(const std::string& packed) {
  Asked asked = asked_of_llama(2);
  asked.strategy().precision = models::Precision::bf16_mixed;
  asked.strategy().lora = models::Lora{.rank = 2, .targets = {"all-linear"}};
  if (!packed.empty())
    asked.strategy().quantize = models::Quantization{models::find_packed_storage(packed)};
  asked.options().param_persistence_threshold = 0;
  return asked;
}

}  // namespace

// Below 17 elements are norms and half of the adapters: the first step's end lets go of them.
TEST_CASE("what a step gathers it lets go, packed weights too, and what stays from then on") {
  for (const std::string packed : {"", "int8", "nf4"})
    for (const bool recomputed : {false, true})
      for (const std::int64_t threshold : {0, 17}) {
        CAPTURE(packed);
        CAPTURE(recomputed);
        CAPTURE(threshold);
        Asked asked = asked_of_packed(packed);
        asked.options().param_persistence_threshold = threshold;
        if (recomputed) asked.strategy().recompute.kind = models::RecomputeKind::full;
        const auto requests = planner::deepspeed::gather_requests(
            asked.parts(), asked.layout(), asked.engine(), asked.question.strategy, false);
        for (const planner::Gathers& gathers : requests) {
          CHECK(gathers.size() > 30);
          CHECK(unbalanced(gathers) == 0);
        }
      }
}

// A weight of 8 x 8 is 66 bytes on three ranks, of 8 x 24 192; no other parameter is. Transformers'
// Linear8bitLt puts its own copy in the gathered weight's place, which goes before the next comes,
// though all of them may stay gathered.
TEST_CASE("of int8's packed weights one is gathered at a time in the forward") {
  Asked asked = asked_of_packed("int8");
  asked.options().prefetch_bucket_size = 0;
  const auto requests = planner::deepspeed::gather_requests(
      asked.parts(), asked.layout(), asked.engine(), asked.question.strategy, false);
  std::set<std::int32_t> there;
  std::size_t taken = 0, most = 0;
  for (const planner::GatherEvent& event : requests[1]) {
    if (event.goes) there.erase(event.block);
    if (event.goes || (event.bytes != Bytes(66) && event.bytes != Bytes(192))) continue;
    there.insert(event.block);
    if (++taken <= 14) most = std::max(most, there.size());
  }
  CHECK(taken >= 14);
  CHECK(most == 1);
}
