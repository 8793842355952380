// Drawn spaces, each searched with and without shortcuts. PLIMSOLL_SEED and PLIMSOLL_CASES draw
// others, and more.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <tuple>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "planner/search/axes.h"
#include "planner/search/concessions.h"
#include "planner/search/search.h"
#include "tests/sanitized.h"
#include "tests/search/brute_force.h"

using namespace plimsoll;
using namespace plimsoll::planner;
using namespace plimsoll::planner::search;

namespace {

int from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}

  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[random_() % values.size()];
  }

  // A card whose memory is drawn, so that limits fall anywhere.
  Scope scope(models::ModelSpec& model) {
    model = models::catalog_model(one_of({"gpt2", "smollm2-135m", "qwen2-0.5b"}));
    Scope s;
    s.base.model = &model;
    s.base.cluster.gpu = models::find_gpu(one_of({"4090", "a100-40gb", "t4", "h100"}));
    s.base.cluster.memory = Bytes(one_of<std::int64_t>({3, 4, 6, 9, 14}) * (1LL << 30));
    s.base.strategy.gpus = s.gpus = one_of<std::int64_t>({1, 2, 3, 4});
    s.base.strategy.gpus_per_node = one_of<std::int64_t>({2, 8});
    s.base.batch.seq_len = one_of<std::int64_t>({256, 512, 1024});
    s.objective = one_of({Objective::throughput, Objective::throughput, Objective::gpus,
                          Objective::memory, Objective::batch, Objective::context});
    const bool sized = s.objective == Objective::batch || s.objective == Objective::context;
    if (!sized && random_() % 2 == 0) s.global_batch = one_of<std::int64_t>({4, 6, 12, 32});
    s.threads = 1 + random_() % 3;
    s.top = 1 + random_() % 5;
    s.without["recompute"] = {"every", one_of({"sqrt", "selective", "none"})};
    if (sized) s.only["loss"] = {"full", "fused"};
    if (sized) s.fixed.insert("optimizer-impl");
    if (s.objective == Objective::batch) s.only["shard-group"] = {"all"};
    if (s.objective == Objective::batch) s.without["adapters"] = {"lora"};
    if (random_() % 3 == 0) s.without["adapters"] = {"lora"};
    s.most_concession = kMostWithoutPacking;  // what is beyond is all looked at in search_test.cpp
    return s;
  }

 private:
  std::mt19937 random_;
};

// The points of a family, all of them: for lengths and batches every size up to the family's most.
std::vector<models::Batch> every_batch(const Scope& scope, const Setting& family) {
  if (scope.objective != Objective::batch && scope.objective != Objective::context)
    return batches(scope, family);
  std::vector<models::Batch> all;
  models::Batch batch = family.batch;
  if (scope.objective == Objective::context)
    for (batch.seq_len = 256; batch.seq_len <= scope.base.model->max_positions;
         batch.seq_len += 256)
      all.push_back(batch);
  else
    for (batch.micro_batch = 1; batch.micro_batch <= 512; ++batch.micro_batch) all.push_back(batch);
  return all;
}

}  // namespace

TEST_CASE("drawn spaces: the best of the search is the best of all points") {
  const int first = from_environment("PLIMSOLL_SEED", 1),
            cases = from_environment("PLIMSOLL_CASES", tests::draws(8));
  std::int64_t points = 0;
  for (int seed = first; seed < first + cases; ++seed) {
    CAPTURE(seed);
    models::ModelSpec model;
    Scope scope = Draw(static_cast<unsigned>(seed)).scope(model);
    const Result found = search::search(scope);
    scope.exhaustive = true;
    std::vector<tests::Point> all = tests::points_of(scope, [&](const Setting& family) {
      std::vector<models::Batch> batches = every_batch(scope, family);
      points += std::ssize(batches);
      return batches;
    });
    tests::BruteForce brute(scope, std::move(all));
    const std::optional<tests::Point> best = brute.best();
    REQUIRE(found.ranked.empty() == !best.has_value());
    if (!best) continue;
    const Found& f = found.ranked.front();
    CAPTURE(options_of(f.setting));
    CAPTURE(options_of(best->setting));
    CHECK(f.setting.concession == best->setting.concession);
    CHECK(f.setting.strategy.gpus == best->setting.strategy.gpus);
    CHECK(found.fastest == brute.fastest());
    const std::int64_t tight = brute.tightness(f.plan);
    if (scope.objective != Objective::memory) CHECK(f.rank.tight == tight);
    CHECK(brute.tied({f.setting, f.need, f.throughput.tokens_per_second, tight}) ==
          brute.tied(*best));
    CHECK(std::ranges::is_sorted(found.ranked, {}, [](const Found& x) { return x.rank; }));
  }
  MESSAGE(points << " points");
}
