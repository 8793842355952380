// The pruned search against an exhaustive one that shares none of its shortcuts.
#include "planner/search/search.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "planner/search/axes.h"
#include "planner/search/concessions.h"
#include "tests/search/brute_force.h"

using namespace plimsoll;
using namespace plimsoll::planner;
using namespace plimsoll::planner::search;

namespace {

struct Case {
  const char* name;
  const char* model;
  const char* gpu;
  std::int64_t gpus;
  std::int64_t seq_len;
  Objective objective = Objective::throughput;
  std::optional<std::int64_t> global_batch = std::nullopt;
  std::int64_t node = 8;
  int most_concession = kMostWithoutPacking;
};

Scope scope_of(const models::ModelSpec& model, const Case& c) {
  Scope scope;
  scope.base.model = &model;
  scope.base.cluster.gpu = models::find_gpu(c.gpu);
  scope.base.strategy.gpus = scope.gpus = c.gpus;
  scope.base.strategy.gpus_per_node = c.node;
  scope.base.batch.seq_len = c.seq_len;
  scope.objective = c.objective;
  scope.global_batch = c.global_batch;
  scope.without["recompute"] = {"every"};  // a hundred thousand points are enough
  scope.most_concession = c.most_concession;
  return scope;
}

// Every point of every family; the best of all that fit as `fit` plans them.
std::optional<tests::Point> best_by_looking_at_all(const Scope& given) {
  Scope scope = given;
  scope.exhaustive = true;
  const std::vector<Setting> all = families(scope);
  const Space space(scope);
  Evaluator evaluator(scope, space);
  std::vector<tests::Point> points;
  for (const Setting& family : all)
    for (const models::Batch& batch : batches(scope, family)) {
      Setting x = family;
      x.batch = batch;
      const auto need = evaluator.need(x, x.batch);
      if (!need || need->least() > *space.usable()) continue;
      CHECK(x.batch.tokens() <= space.most_tokens(x));  // what fits is never cut off unseen
      points.push_back({x, *need, space.throughput(x, x.batch).tokens_per_second});
    }
  tests::BruteForce brute(scope, std::move(points));
  return brute.best();
}

constexpr Case kCases[] = {
    {"one small card", "gpt2", "4090", 1, 1024},
    {"states are the limit", "gpt2-xl", "4090", 2, 1024},
    {"a given global batch", "llama-3.2-1b", "a100-40gb", 4, 2048, Objective::throughput, 48},
    {"seven of eight", "gpt2", "4090", 8, 1024, Objective::throughput, 7},
    {"six of eight", "qwen3-0.6b", "a100-40gb", 8, 2048, Objective::throughput, 12},
    {"nodes of three", "gpt2", "4090", 8, 1024, Objective::throughput, 6, 4},
    {"fewest GPUs", "llama-3.2-1b", "4090", 3, 2048, Objective::gpus},
    {"least memory", "qwen3-0.6b", "4090", 2, 2048, Objective::memory},
    {"only adapters fit", "llama-3.2-3b", "4090", 1, 2048},
    {"nothing fits", "llama-3.1-70b", "4090", 1, 2048},
    {"only a packed base fits", "llama-2-13b", "4090", 1, 2048, Objective::throughput, {}, 8, 255},
    {"nothing fits, packed or not",
     "llama-3.1-70b",
     "4090",
     1,
     512,
     Objective::throughput,
     {},
     8,
     255},
};

}  // namespace

TEST_CASE("the pruned search finds what looking at every point finds") {
  for (const Case& c : kCases) {
    CAPTURE(c.name);
    const models::ModelSpec model = models::catalog_model(c.model);
    const Scope scope = scope_of(model, c);
    const Result found = search::search(scope);
    const std::optional<tests::Point> best = best_by_looking_at_all(scope);
    REQUIRE(found.ranked.empty() == !best.has_value());
    if (!best) continue;
    CHECK(options_of(found.ranked.front().setting) == options_of(best->setting));
    CHECK(found.ranked.front().throughput.tokens_per_second == best->speed);
  }
}

TEST_CASE("the answer does not depend on the number of threads") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  Scope scope = scope_of(model, {"", "", "4090", 8, 4096});
  const Result one = search::search(scope);
  scope.threads = 3;
  const Result three = search::search(scope);
  CHECK(one.evaluated == three.evaluated);
  CHECK(one.points == three.points);
  REQUIRE(one.ranked.size() == three.ranked.size());
  for (std::size_t i = 0; i < one.ranked.size(); ++i)
    CHECK(options_of(one.ranked[i].setting) == options_of(three.ranked[i].setting));
  REQUIRE(one.front.size() == three.front.size());
  for (std::size_t i = 0; i < one.front.size(); ++i)
    CHECK(options_of(one.front[i].setting) == options_of(three.front[i].setting));
}

TEST_CASE("the search's peak is the one that fit plans") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  const Result found = search::search(scope_of(model, {"", "", "4090", 8, 4096}));
  REQUIRE(found.ranked.size() == 5);
  for (const Found& f : found.ranked) {
    CAPTURE(options_of(f.setting));
    // What the allocator hands out whole instead of splitting stands on top, in a line of its own.
    Bytes unsplit;
    for (const reports::TensorLine& line : f.plan.tensors)
      if (line.name == "allocator.unsplit_blocks") unsplit = line.bytes;
    CHECK(f.plan.peak - unsplit == f.need.peak);
    CHECK(f.plan.overhead.total() == f.need.overhead);
    CHECK(f.plan.fits);
    CHECK(f.rank.kind == effort(f.setting).kind);
    CHECK(f.rank.knobs == effort(f.setting).knobs);
    CHECK(f.rank.speed == -f.throughput.tokens_per_second);
  }
}

TEST_CASE("points of the front have the peak that fit plans") {
  for (const char* name : {"llama-3.2-1b", "gpt2", "qwen2-0.5b"}) {
    const models::ModelSpec model = models::catalog_model(name);
    const Scope scope = scope_of(model, {"", "", "4090", 4, 1024});
    const Result found = search::search(scope);
    REQUIRE(found.front.size() > 2);
    for (const ParetoPoint& point : found.front) {
      CAPTURE(options_of(point.setting));
      CHECK(point.peak == plan_of(scope, point.setting).peak);
    }
    for (std::size_t i = 1; i < found.front.size(); ++i)
      CHECK(found.front[i - 1].peak < found.front[i].peak);
  }
}

TEST_CASE("no point of the front is beaten, and the best is on it") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  const Result found = search::search(scope_of(model, {"", "", "4090", 8, 4096}));
  REQUIRE(found.front.size() > 2);
  for (std::size_t i = 1; i < found.front.size(); ++i) {
    CHECK(found.front[i - 1].need.least() < found.front[i].need.least());
    CHECK(found.front[i - 1].throughput.tokens_per_second <
          found.front[i].throughput.tokens_per_second);
  }
  CHECK(found.front.back().throughput.tokens_per_second == found.fastest);
}
