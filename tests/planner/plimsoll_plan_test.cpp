// Stack plimsoll behind the planner's door, and what its ranks send.
#include <doctest/doctest.h>

#include <map>

#include "models/model_catalog.h"
#include "planner/plan.h"
#include "planner/stacks/plimsoll/stack.h"
#include "tests/planner/plimsoll_step.h"

using namespace plimsoll;
using namespace plimsoll::planner::plimsoll_stack;

namespace {

// Bytes of the arrays of each kind of collective in one step.
std::map<std::string, std::int64_t> arrays(const models::ModelSpec& model,
                                           const models::Strategy& strategy,
                                           const models::Batch& batch = {.seq_len = 8}) {
  planner::Messages messages;
  write_messages(planner::model_parts(model, strategy), strategy, messages);
  std::map<std::string, std::int64_t> sums;
  for (const reports::Collective& c : planner::collectives_of(messages, batch.grad_accum))
    sums[c.kind + "/" + std::to_string(c.group)] += c.count * c.array.value();
  return sums;
}

using Sums = std::map<std::string, std::int64_t>;

}  // namespace

// Four layers of 36 992 values, embedding 16 384, tail 16 448, in bf16.
TEST_CASE("what plimsoll's ranks send: DDP 1, ZeRO-1 and 2 1 + 1, ZeRO-3 2 + 1 arrays a step") {
  const models::ModelSpec model = small_llama(4);
  constexpr std::int64_t kLayers = 2 * 4 * 36'992, kEnds = 2 * (16'384 + 16'448);
  models::Strategy s = bf16_strategy();
  CHECK(arrays(model, s).empty());
  s.gpus = 4;
  CHECK(arrays(model, s) == Sums{{"all_reduce/4", kLayers + kEnds}});
  for (const int zero : {1, 2}) {
    s.data.zero = zero;
    CHECK(arrays(model, s) ==
          Sums{{"reduce_scatter/4", kLayers + kEnds}, {"all_gather/4", kLayers + kEnds}});
  }
  // Layers are gathered twice, the ends once: the embedding's backward reads no table, and the tail
  // stays from the head's forward to its backward.
  s.data.zero = 3;
  CHECK(arrays(model, s) ==
        Sums{{"reduce_scatter/4", kLayers + kEnds}, {"all_gather/4", 2 * kLayers + kEnds}});
  // Checkpoints of two layers gather the first of them a third time.
  s.recompute = {models::RecomputeKind::every, 2};
  CHECK(arrays(model, s)["all_gather/4"] == 2 * kLayers + kLayers / 2 + kEnds);
  s.recompute = {};
  s.data.shard_group = 2;  // a replica has the other copy of each half
  CHECK(arrays(model, s) == Sums{{"reduce_scatter/2", kLayers + kEnds},
                                 {"all_reduce/2", (kLayers + kEnds) / 2},
                                 {"all_gather/2", 2 * kLayers + kEnds}});
}

TEST_CASE("accumulating, DDP and ZeRO-1 of plimsoll reduce once, ZeRO-2 and 3 each time") {
  const models::ModelSpec model = small_llama(4);
  constexpr std::int64_t kAll = 2 * (4 * 36'992 + 16'384 + 16'448);
  models::Strategy s = bf16_strategy();
  s.gpus = 4;
  const models::Batch batch{.seq_len = 8, .grad_accum = 5};
  CHECK(arrays(model, s, batch)["all_reduce/4"] == kAll);
  s.data.zero = 1;
  CHECK(arrays(model, s, batch)["reduce_scatter/4"] == kAll);
  CHECK(arrays(model, s, batch)["all_gather/4"] == kAll);
  s.data.zero = 2;
  CHECK(arrays(model, s, batch)["reduce_scatter/4"] == 5 * kAll);
  CHECK(arrays(model, s, batch)["all_gather/4"] == kAll);
  s.data.zero = 3;
  CHECK(arrays(model, s, batch)["reduce_scatter/4"] == 5 * kAll);
}

TEST_CASE("a plan of stack plimsoll: categories sum to the peak, states and place are the step's") {
  const models::ModelSpec model = models::catalog_model("llama-3.1-8b");
  planner::Question question;
  question.model = &model;
  question.strategy = bf16_strategy();
  question.strategy.gpus = 8;
  question.strategy.data.zero = 3;
  question.strategy.recompute.kind = models::RecomputeKind::full;
  question.batch.seq_len = 8192;
  const reports::Plan plan = planner::plan(question);
  CHECK(reports::sum(plan.at_peak) == plan.peak);
  CHECK(plan.reserved >= plan.peak);
  CHECK(plan.states.total() == Bytes(2 * 8'030'261'248));  // 16 / 8
  // 8192 tokens: logits 8192 · 128 256 · 2, above all that a layer needs; the head's gradient is
  // made beside them.
  CHECK(plan.peak_place.where == "lm_head.weight.grad");
  CHECK(plan.at_peak[static_cast<std::size_t>(models::Category::logits)] ==
        Bytes(8192LL * 128'256 * 2));
  // Whole beside the pieces (P / 8): the tail, and the last layer, gathered for its backward.
  CHECK(plan.at_peak[static_cast<std::size_t>(models::Category::parameters)] ==
        Bytes(2 * (8'030'261'248 / 8 + 128'256LL * 4096 + 4096 + 218'112'000)));
}
