// What the search leaves out without a look at it, held against every batch; and the edge of a
// card, to the byte.
#include <doctest/doctest.h>

#include <algorithm>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "models/model_reader.h"
#include "models/recompute.h"
#include "planner/search/axes.h"
#include "planner/search/closest.h"
#include "planner/search/concessions.h"
#include "planner/search/family.h"
#include "planner/search/search.h"
#include "tests/search/scope_of.h"

using namespace plimsoll;
using namespace plimsoll::planner;
using namespace plimsoll::planner::search;
using tests::scope_of;

namespace {

// Little but a vocabulary: logits and what the loss makes of them are far above all that stays.
models::ModelSpec mostly_scratch() {
  return models::read_model(
      R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "vocab_size": 50000,
          "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 3,
          "max_position_embeddings": 2048, "tie_word_embeddings": true})",
      "mostly-scratch", "test", {});
}

// Little but layers: with checkpoints their inputs are most of what a token needs.
models::ModelSpec deep(std::int64_t layers) {
  return models::read_model(
      R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 16, "vocab_size": 20,
          "num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 2048,
          "tie_word_embeddings": true, "num_hidden_layers": )" +
          std::to_string(layers) + "}",
      "deep", "test", {});
}

struct Seen {
  std::int64_t families = 0, fit = 0, not_fit = 0;
};

// Batches of one family upwards, until three in a row are above any hope.
void hold_bounds(const Scope& scope, const Space& space, Evaluator& evaluator,
                 const Setting& family, Seen& seen) {
  std::optional<Need> first;
  Bytes monotone;  // the highest so far
  int hopeless = 0;
  std::optional<Family> pruned;
  std::size_t i = 0;
  for (const models::Batch& batch : space.batches(family)) {
    const std::optional<Need> need = evaluator.need(family, batch);
    if (!need) return;  // refused by its stack
    CAPTURE(options_of(family));
    CAPTURE(batch.micro_batch);
    if (!first) {
      first = need;
      pruned.emplace(scope, space, family, 0, need->states);
      ++seen.families;
    }
    // Parameters and optimizer states are there whatever the batch.
    REQUIRE(need->states == first->states);
    REQUIRE(need->states <= need->peak);
    REQUIRE(need->scratch <= need->peak);
    // What a smaller batch needs without scratch, a larger one needs with its own.
    REQUIRE(monotone <= need->counted());
    monotone = std::max(monotone, need->monotone());
    const bool fits = need->counted() <= *space.usable();
    if (fits) {
      REQUIRE(batch.tokens() <= space.most_tokens(family));
      REQUIRE(batch.tokens() <= space.most_tokens(family, need->states));
      REQUIRE(i < pruned->points());
      REQUIRE(pruned->batch(i) == batch);
    }
    ++(fits ? seen.fit : seen.not_fit);
    hopeless = need->monotone() > *space.usable() ? hopeless + 1 : 0;
    if (hopeless == 3) return;
    ++i;
  }
}

Seen hold_bounds(const Scope& scope, std::size_t every) {
  const Space space(scope);
  Evaluator evaluator(scope, space);
  const std::vector<Setting> all = families(scope);
  Seen seen;
  for (std::size_t f = 0; f < all.size(); f += every)
    hold_bounds(scope, space, evaluator, all[f], seen);
  return seen;
}

}  // namespace

TEST_CASE("what the search leaves out by its bounds does not fit") {
  struct Case {
    models::ModelSpec model;
    std::int64_t gpus, seq_len, gigabytes;
    std::size_t every;
  };
  const Case cases[] = {{models::catalog_model("gpt2"), 4, 512, 6, 2},
                        {models::catalog_model("qwen2-0.5b"), 2, 1024, 12, 2},
                        {mostly_scratch(), 4, 256, 3, 1}};
  for (const Case& c : cases) {
    CAPTURE(c.model.name);
    Scope scope = scope_of(c.model, c.gpus, c.seq_len, Bytes(c.gigabytes << 30));
    const Seen seen = hold_bounds(scope, c.every);
    MESSAGE(c.model.name << ": " << seen.families << " families, " << seen.fit
                         << " batches that fit, " << seen.not_fit << " that do not");
    CHECK(seen.families > 100);
    CHECK(seen.fit > 1000);
    CHECK(seen.not_fit > 300);
  }
}

// 100 layers are 10 checkpoints of 10: 100 / (10 + 1) - 1 = 8 inputs at least, of 128 bytes a
// token.
TEST_CASE("checkpoints by the square root are counted with the one that may share its place") {
  const models::ModelSpec model = deep(100);
  const Scope scope = scope_of(model, 1, 128, 1_GiB);
  Setting x{.strategy = scope.base.strategy, .batch = scope.base.batch};
  x.strategy.recompute.kind = models::RecomputeKind::sqrt;
  CHECK(Space(scope).most_tokens(x, 0_B) == (std::int64_t{1} << 30) / (128 * 8));
}

// Each space makes its parts once: the layers of --recompute block and nth are split in them.
TEST_CASE("the search takes checkpoints around some layers as a plan does") {
  const models::ModelSpec model = deep(16);
  for (const char* adapters : {"full", "lora"})
    for (const models::Recompute& recompute : {models::Recompute{models::RecomputeKind::block, 1},
                                               models::Recompute{models::RecomputeKind::block, 5},
                                               models::Recompute{models::RecomputeKind::block, 15},
                                               models::Recompute{models::RecomputeKind::block, 16},
                                               models::Recompute{models::RecomputeKind::nth, 2},
                                               models::Recompute{models::RecomputeKind::nth, 7}}) {
      CAPTURE(models::text_of(recompute));
      Scope scope = scope_of(model, 1, 256, 1_GiB);
      scope.base.strategy.recompute = recompute;
      scope.fixed.insert("recompute");
      scope.only["adapters"] = {adapters};
      scope.only["stack"] = {"pytorch"};
      const Space space(scope);
      Evaluator evaluator(scope, space);
      const Setting family = families(scope).front();
      const auto need = evaluator.need(family, family.batch);
      REQUIRE(need);
      CHECK(need->peak == plan_of(scope, family).peak);
    }
}

// Of 128 layers. Every checkpoint's input is 64 values of 2 bytes for each token, the last one's
// left out: 127 with one of them for each layer, 128 / 4 - 1 = 31 for each four, of sqrt 128 / (12
// + 1) - 1 = 8 (12 · 12 is the least square from 128 on). 10 MB beside.
TEST_CASE("the bound of tokens is what the checkpoints' inputs leave room for") {
  const models::ModelSpec model = deep(128);
  const Scope scope = scope_of(model, 1, 128, 1_GiB);
  const Space space(scope);
  Setting x{.strategy = scope.base.strategy, .batch = scope.base.batch};
  const auto most = [&](models::RecomputeKind kind, std::int64_t every) {
    x.strategy.recompute = {kind, every};
    return space.most_tokens(x, Bytes(10'000'000));
  };
  constexpr std::int64_t kRoom = 1'063'741'824;  // 2^30 - 10^7
  using models::RecomputeKind;
  CHECK(most(RecomputeKind::none, 1) == kRoom / (128 * 127));
  CHECK(most(RecomputeKind::full, 1) == kRoom / (128 * 127));
  CHECK(most(RecomputeKind::every, 4) == kRoom / (128 * 31));
  CHECK(most(RecomputeKind::sqrt, 1) == kRoom / (128 * 8));
  CHECK(space.most_tokens(x, 2_GiB) == 0);
  // Frozen layers below the first that is trained hold nothing.
  Scope frozen = scope;
  frozen.base.strategy.freeze = {"*"};
  frozen.base.strategy.train = {"*.127.*", "*.126.*"};
  const Space little(frozen);
  x.strategy = frozen.base.strategy;
  CHECK(little.most_tokens(x) == (std::int64_t{1} << 30) / 128);  // one of two inputs
}

TEST_CASE("a bound that is nearly reached cuts nothing off") {
  const models::ModelSpec model = deep(128);
  Scope scope = scope_of(model, 1, 64, 4_GiB);
  scope.only = {{"recompute", {"full", "every", "sqrt"}}, {"adapters", {"full"}}};
  const Seen seen = hold_bounds(scope, 1);
  CHECK(seen.families > 50);
  CHECK(seen.fit > 500);
  CHECK(seen.not_fit > 100);
}

// Layers below the first that is trained hold no input for the backward.
TEST_CASE("the bounds know layers that hold nothing, being frozen") {
  models::ModelSpec model = models::catalog_model("gpt2");
  Scope scope = scope_of(model, 2, 512, 4_GiB);
  scope.base.strategy.freeze = {"*"};
  scope.base.strategy.train = {"*.h.11.*", "*ln_f*"};
  const Seen seen = hold_bounds(scope, 3);
  CHECK(seen.families > 100);
  CHECK(seen.fit > 1000);
}

// Cards of several sizes, so that what the allocator adds pushes some point of a front over the
// edge.
TEST_CASE("the front of a pruned look is that of a look at every point") {
  const models::ModelSpec gpt2 = models::catalog_model("gpt2"), scratch = mostly_scratch();
  for (const models::ModelSpec* model : {&gpt2, &scratch})
    for (const std::int64_t gpus : {1, 3})
      for (const std::int64_t mebibytes : {4600, 5000, 5400, 5800})
        for (const std::int64_t global_batch : {0, 24}) {
          CAPTURE(model->name);
          CAPTURE(gpus);
          CAPTURE(mebibytes);
          CAPTURE(global_batch);
          Scope scope = scope_of(*model, gpus, 512, Bytes(mebibytes << 20));
          if (global_batch > 0) scope.global_batch = global_batch;
          scope.only = {{"recompute", {"none", "full", "sqrt"}}, {"adapters", {"full"}}};
          const Result pruned = search::search(scope);
          scope.exhaustive = true;
          const Result all = search::search(scope);
          REQUIRE(pruned.front.size() >= 2);
          REQUIRE(pruned.front.size() == all.front.size());
          for (std::size_t i = 0; i < all.front.size(); ++i) {
            CHECK(options_of(pruned.front[i].setting) == options_of(all.front[i].setting));
            CHECK(pruned.front[i].peak == all.front[i].peak);
            CHECK(search::fits(scope, plan_of(scope, pruned.front[i].setting)));
          }
          if (global_batch == 0) CHECK(pruned.evaluated < all.evaluated);
        }
}

// Sharding alike says nothing about activations: what is too much without recomputation is not
// with.
TEST_CASE("where only recomputation fits it is found") {
  const models::ModelSpec model = models::catalog_model("gpt2");
  Scope scope = scope_of(model, 1, 1024, Bytes(std::int64_t{40} << 30));
  scope.fixed.insert({"stack", "precision", "adapters", "attention", "micro-batch"});
  scope.only = {{"recompute", {"full"}}, {"loss", {"full"}}};
  const Result recomputed = search::search(scope);
  REQUIRE(recomputed.ranked.size() == 1);
  scope.only["recompute"] = {"none", "full"};
  scope.base.cluster.memory = recomputed.ranked.front().plan.high_end->device();
  const Result found = search::search(scope);
  REQUIRE(found.ranked.size() == 1);
  CHECK(found.ranked.front().setting.strategy.recompute.kind == models::RecomputeKind::full);
  scope.only["recompute"] = {"none"};
  CHECK(search::search(scope).ranked.empty());
}

// One family and one batch: the card is exactly as large as what that needs, or a byte smaller.
TEST_CASE("a card that is one byte too small is too small, by that byte") {
  const models::ModelSpec model = models::catalog_model("gpt2");
  int edges = 0;
  for (const char* stack : {"pytorch", "deepspeed", "plimsoll"})
    for (const char* zero : {"0", "2", "3"})
      for (const char* loss : {"full", "fused"})
        for (const Overheads overheads : {Overheads::typical, Overheads::high_end}) {
          Scope scope = scope_of(model, 4, 512, Bytes(std::int64_t{40} << 30));
          scope.overheads = overheads;
          scope.base.cluster.reserve = 777_B;
          scope.base.batch.micro_batch = 3;
          scope.fixed.insert({"precision", "adapters", "param-dtype", "recompute", "attention",
                              "shard-group", "micro-batch"});
          scope.only = {{"stack", {stack}}, {"zero", {zero}}, {"loss", {loss}}};
          const Result wide = search::search(scope);
          if (wide.ranked.empty()) continue;  // refused by its stack
          const reports::Plan& plan = wide.ranked.front().plan;
          CAPTURE(options_of(wide.ranked.front().setting));
          const bool high = overheads == Overheads::high_end && plan.high_end;
          const Bytes edge = high ? plan.high_end->device() : plan.device;
          scope.base.cluster.memory = edge + 777_B;
          const Result at = search::search(scope);
          REQUIRE(at.ranked.size() == 1);
          CHECK(at.ranked.front().plan.fits);
          CHECK(counted_need(scope, at.ranked.front()) == edge);
          scope.base.cluster.memory = edge + 776_B;
          CHECK(search::search(scope).ranked.empty());
          const std::optional<Found> nearest = closest(scope);
          REQUIRE(nearest.has_value());
          CHECK(counted_need(scope, *nearest) == edge);
          CHECK_FALSE(fits(scope, nearest->plan));
          ++edges;
        }
  CHECK(edges >= 30);
}

// 64 rows of two ranks: 32 each, one at a time or as many as are given; 5 do not divide them.
TEST_CASE(
    "the longest sequence of a global batch is of the rows at a time that are given, else one") {
  const models::ModelSpec model = models::catalog_model("gpt2");
  Scope scope = scope_of(model, "4090", 2, 512);
  scope.fixed = {"gpus"};
  scope.objective = Objective::context;
  scope.only = {{"stack", {"pytorch"}}, {"recompute", {"full"}}};
  scope.global_batch = 64;
  scope.base.batch.micro_batch = 4;
  const auto expect = [&](std::int64_t rows, std::int64_t times) {
    const std::vector<Found> found = search::search(scope).ranked;
    REQUIRE(!found.empty());
    for (const Found& one : found) {
      CHECK(one.setting.batch.micro_batch == rows);
      CHECK(one.setting.batch.grad_accum == times);
    }
  };
  expect(1, 32);
  scope.fixed.insert("micro-batch");
  expect(4, 8);
  scope.base.batch.micro_batch = 5;
  CHECK(search::search(scope).ranked.empty());
}
