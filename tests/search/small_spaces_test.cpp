// Small drawn spaces, each looked at point by point: the list, and the front, with no shortcut of
// the search's. They take a tenth of a second each; drawn_test.cpp has fewer and larger ones.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "models/gpu_catalog.h"
#include "models/model_reader.h"
#include "planner/search/axes.h"
#include "planner/search/concessions.h"
#include "planner/search/search.h"
#include "tests/search/brute_force.h"

using namespace plimsoll;
using namespace plimsoll::planner;
using namespace plimsoll::planner::search;

namespace {

// Of few layers: states, activations and logits are of one size.
models::ModelSpec model_of(int layers, const char* tied) {
  return models::read_model(
      R"({"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024,
          "vocab_size": 16000, "num_attention_heads": 8, "num_key_value_heads": 4,
          "max_position_embeddings": 2048, "tie_word_embeddings": )" +
          std::string(tied) + R"(, "num_hidden_layers": )" + std::to_string(layers) + "}",
      "small", "test", {});
}

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}

  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[random_() % values.size()];
  }

  Scope scope(models::ModelSpec& model, Objective objective) {
    model = model_of(one_of({2, 5, 12}), one_of({"true", "false"}));
    Scope s;
    s.base.model = &model;
    s.base.cluster.gpu = models::find_gpu(one_of({"4090", "a100-40gb", "h100"}));
    s.base.cluster.memory = Bytes(one_of<std::int64_t>({2600, 3000, 3600, 4400, 6000}) << 20);
    s.base.strategy.gpus = s.gpus = one_of<std::int64_t>({1, 2, 3, 4, 6});
    s.base.strategy.gpus_per_node = one_of<std::int64_t>({2, 8});
    s.base.batch.seq_len = one_of<std::int64_t>({64, 256, 1024});
    s.objective = objective;
    s.overheads = one_of({Overheads::typical, Overheads::high_end});
    const bool sized = objective == Objective::batch || objective == Objective::context;
    if (!sized && random_() % 2 == 0) s.global_batch = one_of<std::int64_t>({6, 24, 40});
    s.top = one_of<std::size_t>({1, 3, 5});
    s.fixed = {"optimizer-impl", "kernels", "optimizer"};
    s.only = {{"recompute", {one_of({"none", "selective"}), one_of({"full", "sqrt"})}},
              {"loss", {"full", one_of({"chunked", "fused"})}},
              {"attention", {"flash", one_of({"eager", "math"})}},
              {"adapters", {one_of({"full", "full", "lora"})}},
              {"stack", {"pytorch", one_of({"deepspeed", "plimsoll"})}}};
    s.most_concession = kMostWithoutPacking;
    if (sized) s.only["attention"] = {"flash"};
    if (sized) s.base.batch.seq_len = 2048;
    return s;
  }

 private:
  std::mt19937 random_;
};

std::vector<models::Batch> every_batch(const Scope& scope, const Setting& family) {
  models::Batch batch = family.batch;
  std::vector<models::Batch> all;
  if (scope.objective == Objective::context)
    for (batch.seq_len = 256; batch.seq_len <= 2048; batch.seq_len += 256) all.push_back(batch);
  else if (scope.objective == Objective::batch)
    for (batch.micro_batch = 1; batch.micro_batch <= 150; ++batch.micro_batch) all.push_back(batch);
  else
    return batches(scope, family);
  return all;
}

void hold_list(const Result& found, tests::BruteForce& brute, const Scope& scope) {
  const std::vector<tests::Point> list = brute.list(scope.top);
  REQUIRE(found.ranked.size() == list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Found& f = found.ranked[i];
    CAPTURE(options_of(f.setting));
    CAPTURE(options_of(list[i].setting));
    const std::int64_t tight = brute.tightness(f.plan);
    CHECK(f.rank.tight == tight);
    CHECK(brute.tied({f.setting, f.need, f.speed(), tight}) == brute.tied(list[i]));
  }
}

std::int64_t segments(const Need& need) {
  return ceil_divide(need.least().value(), std::int64_t{2} << 20);
}

// Of the points with the winner's concession and GPUs: no point of the front is beaten by another,
// and each point that fits is beaten by the front, in steps of 2 MiB, or by one that the front has
// not because the allocator hands it whole blocks: as planned it needs more than a faster one.
void hold_front(const Result& found, tests::BruteForce& brute, const Scope& scope,
                const std::vector<tests::Point>& all) {
  const Setting& winner = found.ranked.front().setting;
  REQUIRE(!found.front.empty());
  for (std::size_t i = 1; i < found.front.size(); ++i) {
    CHECK(found.front[i - 1].peak < found.front[i].peak);
    CHECK(found.front[i - 1].throughput.tokens_per_second <
          found.front[i].throughput.tokens_per_second);
  }
  std::vector<const tests::Point*> open;  // that no point of the front is as good as
  for (const tests::Point& p : all)
    if (p.setting.concession == winner.concession &&
        p.setting.strategy.gpus == winner.strategy.gpus &&
        std::ranges::none_of(found.front, [&](const ParetoPoint& f) {
          return f.throughput.tokens_per_second >= p.speed && segments(f.need) <= segments(p.need);
        }))
      open.push_back(&p);
  std::erase_if(open, [&](const tests::Point* p) { return !brute.fits(*p); });
  std::vector<const tests::Point*> left_out;
  for (const tests::Point* p : open) {
    const Bytes peak = plan_of(scope, p->setting).peak;
    if (std::ranges::any_of(found.front, [&](const ParetoPoint& f) {
          return f.throughput.tokens_per_second >= p->speed && f.peak <= peak;
        }))
      left_out.push_back(p);
  }
  for (const tests::Point* p : open) {
    CAPTURE(options_of(p->setting));
    CHECK(std::ranges::any_of(left_out, [&](const tests::Point* q) {
      return q->speed >= p->speed && segments(q->need) <= segments(p->need);
    }));
  }
}

void hold_space(unsigned seed, Objective objective) {
  CAPTURE(seed);
  models::ModelSpec model;
  const Scope scope = Draw(seed).scope(model, objective);
  const Result found = search::search(scope);
  const std::vector<tests::Point> all =
      tests::points_of(scope, [&](const Setting& family) { return every_batch(scope, family); });
  tests::BruteForce brute(scope, all);
  const std::optional<tests::Point> best = brute.best();
  REQUIRE(found.ranked.empty() == !best.has_value());
  if (!best) return;
  const Found& f = found.ranked.front();
  CAPTURE(options_of(f.setting));
  CAPTURE(options_of(best->setting));
  CHECK(f.setting.concession == best->setting.concession);
  CHECK(f.setting.strategy.gpus == best->setting.strategy.gpus);
  CHECK(found.fastest == brute.fastest());
  for (const Found& one : found.ranked) CHECK(fits(scope, one.plan));
  if (objective == Objective::memory)
    CHECK(f.need.least() == best->need.least());
  else
    hold_list(found, brute, scope);
  const bool sized = objective == Objective::batch || objective == Objective::context;
  if (!sized) hold_front(found, brute, scope, all);
}

}  // namespace

TEST_CASE("small spaces: the fastest, the list behind it and the front are those of all points") {
  for (unsigned seed = 100; seed < 106; ++seed) hold_space(seed, Objective::throughput);
}

TEST_CASE("small spaces: so they are in others") {
  for (unsigned seed = 106; seed < 112; ++seed) hold_space(seed, Objective::throughput);
}

TEST_CASE("small spaces: the fewest GPUs, and the list and the front on them") {
  for (unsigned seed = 200; seed < 210; ++seed) hold_space(seed, Objective::gpus);
}

TEST_CASE("small spaces: the least memory, and the front beside it") {
  for (unsigned seed = 300; seed < 310; ++seed) hold_space(seed, Objective::memory);
}

TEST_CASE("small spaces: the longest sequence, the most sequences") {
  for (unsigned seed = 400; seed < 406; ++seed) hold_space(seed, Objective::context);
  for (unsigned seed = 500; seed < 502; ++seed) hold_space(seed, Objective::batch);
}
