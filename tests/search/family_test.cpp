// One family of points: what fits of it is found, point by point, whatever is left out unseen.
#include "planner/search/family.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "models/gpu_catalog.h"
#include "models/model_reader.h"
#include "planner/search/axes.h"
#include "planner/search/concessions.h"
#include "tests/search/scope_of.h"

using namespace plimsoll;
using namespace plimsoll::planner;
using namespace plimsoll::planner::search;
using tests::scope_of;

namespace {

// Little but a vocabulary.
const models::ModelSpec& wide() {
  static const models::ModelSpec model = models::read_model(
      R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "vocab_size": 50000,
          "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 3,
          "max_position_embeddings": 2048, "tie_word_embeddings": true})",
      "wide", "test", {});
  return model;
}

struct Size {
  std::int64_t rows, times;
  auto operator<=>(const Size&) const = default;
};
Size size_of(const models::Batch& batch) {
  return {batch.micro_batch, batch.grad_accum};
}

// What the family finds when each that it finds is rejected, sorted; no rank is better than the
// bound said.
std::vector<Size> found_by(Family& family, Evaluator& evaluator) {
  std::vector<Size> out;
  for (;;) {
    const Rank bound = family.bound();
    family.resolve(nullptr, evaluator);
    if (family.found() == nullptr) break;
    CHECK_FALSE(family.found()->rank < bound);
    CHECK(family.found()->setting.batch == family.batch(family.found_index()));
    out.push_back(size_of(family.found()->setting.batch));
    REQUIRE(out.size() <= family.all_points());
    family.reject();
  }
  CHECK(family.exhausted());
  std::ranges::sort(out);
  return out;
}

std::vector<Size> fitting(const Space& space, Evaluator& evaluator, const Setting& setting) {
  std::vector<Size> out;
  for (const models::Batch& batch : space.batches(setting)) {
    const std::optional<Need> need = evaluator.need(setting, batch);
    if (need && need->counted() <= *space.usable()) out.push_back(size_of(batch));
  }
  std::ranges::sort(out);
  return out;
}

// Returns how many points fit, and how many do not.
std::pair<std::size_t, std::size_t> hold(const Scope& scope, std::size_t every) {
  const Space space(scope);
  Evaluator evaluator(scope, space);
  const std::vector<Setting> all = families(scope);
  std::pair<std::size_t, std::size_t> counts;
  for (std::size_t f = 0; f < all.size(); f += every) {
    CAPTURE(options_of(all[f]));
    const std::vector<Size> fit = fitting(space, evaluator, all[f]);
    Family plain(scope, space, all[f], 0);
    CHECK(found_by(plain, evaluator) == fit);
    double fastest = 0;
    for (std::size_t i = 0; i < plain.points(); ++i)
      fastest = std::max(fastest, plain.throughput(i).tokens_per_second);
    for (const double of_kind : {0.0, 0.97 * fastest}) {
      const Ties ties{.fastest = 1.1 * fastest, .of_kind = of_kind};
      Family tied(scope, space, all[f], 0);
      tied.rank_by(&ties);
      CHECK(found_by(tied, evaluator) == fit);
    }
    counts.first += fit.size();
    counts.second += space.batches(all[f]).size() - fit.size();
  }
  return counts;
}

}  // namespace

TEST_CASE("rejected one by one, a family's points are all that fit") {
  for (const Objective objective : {Objective::throughput, Objective::gpus, Objective::memory})
    for (const std::optional<std::int64_t> global_batch :
         {std::optional<std::int64_t>(), std::optional<std::int64_t>(192)})
      for (const std::int64_t gpus : {std::int64_t{1}, std::int64_t{4}}) {
        Scope scope = scope_of(wide(), gpus, 128, 3500_MiB);
        scope.objective = objective;
        scope.global_batch = global_batch;
        const auto [fit, not_fit] = hold(scope, 61);
        CAPTURE(gpus);
        CHECK(fit > 50);
        CHECK(not_fit > 20);
      }
}

// In pure bf16 FSDP2 holds a micro-batch's gradients beside the sum of those before, but in the
// first and the last: three micro-batches of two rows need more than two of three.
TEST_CASE("two micro-batches may fit where three with fewer rows do not") {
  Scope scope = scope_of(wide(), 4, 16, 8_GiB);
  scope.global_batch = 24;
  scope.only = {{"precision", {"bf16"}}, {"zero", {"3"}},        {"shard-group", {"all"}},
                {"stack", {"pytorch"}},  {"kernels", {"liger"}}, {"recompute", {"full"}},
                {"attention", {"math"}}, {"adapters", {"full"}}};
  const std::vector<Setting> all = families(scope);
  REQUIRE(all.size() == 1);
  const auto need = [&](std::int64_t rows, std::int64_t times) {
    const Space space(scope);
    models::Batch batch = all.front().batch;
    batch.micro_batch = rows, batch.grad_accum = times;
    return Evaluator(scope, space).need(all.front(), batch);
  };
  const Bytes usable = need(3, 2)->counted();
  REQUIRE(need(2, 3)->monotone() > usable);
  scope.base.cluster.memory = usable;
  for (const Objective objective : {Objective::throughput, Objective::memory}) {
    scope.objective = objective;
    const Space space(scope);
    REQUIRE(space.usable() == usable);
    Evaluator evaluator(scope, space);
    Family family(scope, space, all.front(), 0);
    const std::vector<Size> found = found_by(family, evaluator);
    CHECK(std::ranges::count(found, Size{3, 2}) == 1);
    CHECK(std::ranges::count(found, Size{2, 3}) == 0);
  }
}

// Sizes by hand: rows of 64 tokens one by one, lengths in steps of 256 tokens up to what the model
// has positions for.
TEST_CASE("of sizes the largest that fits is found, and rejected, the next smaller one") {
  for (const Objective objective : {Objective::batch, Objective::context}) {
    Scope scope = scope_of(wide(), 1, 64, 3_GiB);
    scope.objective = objective;
    scope.base.batch.micro_batch = objective == Objective::context ? 12 : 1;
    const Space space(scope);
    Evaluator evaluator(scope, space);
    const std::vector<Setting> all = families(scope);
    std::size_t largest = 0, smallest = 500;
    for (std::size_t f = 0; f < all.size(); f += 97) {
      CAPTURE(options_of(all[f]));
      std::vector<models::Batch> fit;
      models::Batch batch = all[f].batch;
      for (std::int64_t size = 1; size <= (objective == Objective::batch ? 500 : 8); ++size) {
        (objective == Objective::batch ? batch.micro_batch : batch.seq_len) =
            objective == Objective::batch ? size : 256 * size;
        const std::optional<Need> need = evaluator.need(all[f], batch);
        if (need && need->counted() <= *space.usable()) fit.push_back(batch);
      }
      largest = std::max(largest, fit.size());
      smallest = std::min(smallest, fit.size());
      Family family(scope, space, all[f], 0);
      CHECK(family.all_points() == (objective == Objective::batch ? 4096 : 8));
      for (std::size_t i = fit.size(); i-- > 0;) {
        family.resolve(nullptr, evaluator);
        REQUIRE(family.found() != nullptr);
        REQUIRE(family.found()->setting.batch == fit[i]);
        const double size = objective == Objective::batch
                                ? static_cast<double>(fit[i].micro_batch)
                                : static_cast<double>(fit[i].seq_len) / 256;
        CHECK(family.found()->rank.first == -size);
        family.reject();
      }
      family.resolve(nullptr, evaluator);
      CHECK(family.found() == nullptr);
      CHECK(family.exhausted());
    }
    CHECK(largest >= (objective == Objective::batch ? 200 : 6));
    CHECK(smallest <= (objective == Objective::batch ? 100 : 4));
  }
}
