// What the reasons say of a list of plans, each sentence held against the plans themselves.
#include "planner/search/reasons.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>

#include "models/model_catalog.h"
#include "planner/search/closest.h"
#include "planner/search/search.h"
#include "planner/search/words.h"
#include "tests/search/scope_of.h"

using namespace plimsoll;
using namespace plimsoll::planner;
using namespace plimsoll::planner::search;

namespace {

using Sentences = std::vector<std::string>;

Scope scope_of(const models::ModelSpec& model, const char* gpu, std::int64_t gpus,
               std::int64_t seq_len, Objective objective) {
  Scope scope = tests::scope_of(model, gpu, gpus, seq_len);
  scope.objective = objective;
  scope.threads = 2;
  return scope;
}

// The sentences that begin so.
Sentences that_begin(const Sentences& all, const std::string& text) {
  Sentences out;
  std::ranges::copy_if(all, std::back_inserter(out),
                       [&](const std::string& s) { return s.starts_with(text); });
  return out;
}

struct Told {
  Result result;
  std::vector<Sentences> why;
  explicit Told(const Scope& scope)
      : result(search::search(scope)), why(reasons(scope, result.ranked, {})) {
    REQUIRE(result.ranked.size() > 1);
    REQUIRE(why.size() == result.ranked.size());
  }
  const Setting& setting(std::size_t i) const { return result.ranked[i].setting; }
};

}  // namespace

// The list is ordered by the objective first: where two neighbours differ in it, that is why.
TEST_CASE("of two plans that reach different sizes the reason says both sizes") {
  const models::ModelSpec model = models::catalog_model("gpt2-xl");
  std::size_t told = 0;
  for (const Objective objective : {Objective::context, Objective::batch}) {
    const bool context = objective == Objective::context;
    Scope scope = scope_of(model, context ? "3060" : "4090", 4, 512, objective);
    scope.top = 6;
    const Told of(scope);
    for (std::size_t i = 0; i + 1 < of.result.ranked.size(); ++i) {
      const auto size = [&](std::size_t k) {
        return context ? of.setting(k).batch.seq_len
                       : of.setting(k).batch.micro_batch * of.setting(k).strategy.gpus;
      };
      CAPTURE(i);
      const Sentences said = that_begin(of.why[i], fmt::format("Before {}: {} ", i + 2, size(i)));
      CHECK(size(i) >= size(i + 1));
      if (size(i) == size(i + 1)) {
        CHECK(said.empty());
        continue;
      }
      ++told;
      CHECK(said ==
            Sentences{fmt::format("Before {}: {} {u} against {} {u}.", i + 2, size(i), size(i + 1),
                                  fmt::arg("u", context ? "tokens" : "sequences"))});
    }
  }
  CHECK(told > 1);
}

TEST_CASE("where memory is the objective the reason is the difference of two peaks") {
  const models::ModelSpec model = models::catalog_model("gpt2");
  Scope scope = scope_of(model, "4090", 2, 512, Objective::memory);
  scope.top = 8;
  const Told of(scope);
  std::size_t told = 0;
  for (std::size_t i = 0; i + 1 < of.result.ranked.size(); ++i) {
    const Bytes less = of.result.ranked[i + 1].need.least() - of.result.ranked[i].need.least();
    const Sentences alike{fmt::format("As little as {}, to a MiB.", i + 2)};
    const Sentences more{
        fmt::format("Before {}: {} less at the peak on each GPU.", i + 2, gib(less))};
    const Sentences said = that_begin(of.why[i], less < 1_MiB ? "As little" : "Before ");
    CHECK(said == (less < 1_MiB ? alike : more));
    CHECK(that_begin(of.why[i], "Micro-batch ").empty());
    told += less >= 1_MiB;
  }
  CHECK(told > 0);
}

// The next micro-batch of every plan of the list, planned: where the batch is the objective it is
// the first that does not fit.
TEST_CASE("the next micro-batch is said not to fit where its plan does not, and by what") {
  const models::ModelSpec model = models::catalog_model("gpt2");
  std::size_t gaps = 0, room = 0;
  for (const Objective objective : {Objective::batch, Objective::throughput})
    for (const std::int64_t length : {512, 300}) {
      Scope scope = scope_of(model, "4090", 2, length, objective);
      scope.only = {{"stack", {"pytorch"}}, {"precision", {"bf16-mixed"}}};
      const Told of(scope);
      for (std::size_t i = 0; i < of.result.ranked.size(); ++i)
        for (const std::string& said : that_begin(of.why[i], "Micro-batch ")) {
          CAPTURE(said);
          Found next = of.result.ranked[i];
          next.setting.batch.micro_batch = std::stoll(said.substr(12));
          CHECK(next.setting.batch.micro_batch > of.setting(i).batch.micro_batch);
          next.plan = plan_of(scope, next.setting);
          const bool says_gaps = said.find("the allocator's gaps") != std::string::npos;
          const bool says_need = said.find(" needs ") != std::string::npos;
          CHECK((says_gaps || says_need) == !fits(scope, next.plan));
          if (objective == Objective::batch) CHECK(!fits(scope, next.plan));
          gaps += says_gaps, room += !says_gaps && !says_need;
        }
    }
  CHECK(gaps > 0);
  CHECK(room > 0);
}

// With a micro-batch of 4 and a global batch of 8 there are no batches for more than two GPUs;
// these come first.
TEST_CASE("what comes closest is found behind numbers of GPUs that have no batch") {
  const models::ModelSpec model = models::catalog_model("gpt2");
  Scope scope = scope_of(model, "4090", 8, 512, Objective::throughput);
  scope.base.cluster.memory = Bytes(std::int64_t{1} << 30);
  scope.global_batch = 8;
  scope.base.batch.micro_batch = 4;
  scope.fixed = {"micro-batch"};
  CHECK(search::search(scope).ranked.empty());
  const std::optional<Found> nearest = closest(scope);
  REQUIRE(nearest.has_value());
  CHECK(nearest->setting.strategy.gpus <= 2);
  CHECK(nearest->setting.batch.micro_batch == 4);
  CHECK_FALSE(fits(scope, nearest->plan));
}

TEST_CASE("what a list goes by is the size that a plan reaches, less being better") {
  const models::ModelSpec model = models::catalog_model("gpt2");
  for (const Objective objective : {Objective::context, Objective::batch, Objective::gpus}) {
    Scope scope = scope_of(model, "4090", 2, 512, objective);
    scope.only = {{"stack", {"pytorch"}}, {"precision", {"bf16-mixed"}}};
    const Result result = search::search(scope);
    REQUIRE(!result.ranked.empty());
    for (const Found& found : result.ranked) {
      const Setting& s = found.setting;
      const auto gpus = static_cast<double>(s.strategy.gpus);
      const double first = objective == Objective::gpus ? gpus
                           : objective == Objective::context
                               ? -static_cast<double>(s.batch.seq_len) / 256
                               : -static_cast<double>(s.batch.micro_batch) * gpus;
      CHECK(found.rank.first == first);
    }
  }
}

TEST_CASE("where the capacity is not known every plan fits") {
  const models::ModelSpec model = models::catalog_model("gpt2");
  const Scope scope = scope_of(model, "4090", 1, 512, Objective::memory);
  reports::Plan plan;
  plan.fits = false;
  CHECK(fits(scope, plan));
  plan.usable = 1_B;
  CHECK_FALSE(fits(scope, plan));
}

// What one GPU fewer needs is the least that it can need, as the scope counts it.
TEST_CASE("what fewer GPUs would need is told with the overheads that are counted") {
  const models::ModelSpec model = models::catalog_model("gpt2-xl");
  for (const Overheads overheads : {Overheads::high_end, Overheads::typical})
    for (const std::int64_t gibibytes : {11, 20}) {
      Scope scope = scope_of(model, "4090", 8, 1024, Objective::gpus);
      scope.base.cluster.memory = Bytes(gibibytes << 30);
      scope.overheads = overheads;
      scope.only = {{"stack", {"pytorch"}},          {"adapters", {"full"}},
                    {"precision", {"bf16-mixed"}},   {"loss", {"fused"}},
                    {"recompute", {"none", "full"}}, {"attention", {"flash"}}};
      scope.fixed = {"optimizer-impl", "kernels"};
      const Result result = search::search(scope);
      REQUIRE(!result.ranked.empty());
      const std::int64_t gpus = result.ranked.front().setting.strategy.gpus;
      CAPTURE(gpus);
      REQUIRE(gpus > 1);
      Scope fewer = scope;
      fewer.gpus = gpus - 1;
      fewer.fixed.insert("gpus");
      fewer.most_concession = 0;
      std::optional<Found> nearest = least_needy(fewer);
      REQUIRE(nearest.has_value());
      // Where its peak alone is too much the allocator has no say.
      if (nearest->need.least() <= *scope.base.cluster.memory)
        nearest->plan = plan_of(fewer, nearest->setting);
      const std::string who = gpus == 2 ? "One GPU" : fmt::format("With {} GPUs each", gpus - 1);
      const bool high = overheads == Overheads::high_end;
      CHECK(that_begin(reasons(scope, result.ranked, {}).front(), who) ==
            Sentences{fmt::format("{} needs at least {}{}; {} is available.", who,
                                  gib(counted_need(scope, *nearest)),
                                  high ? ", overheads at their high end" : "",
                                  gib(scope.base.cluster.memory.value()))});
    }
}
