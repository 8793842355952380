// Nothing fits: the changes that are offered are the smallest ones, and say all that they take.
#include "planner/search/shortage.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "planner/search/axes.h"
#include "planner/search/concessions.h"
#include "tests/search/scope_of.h"

using namespace plimsoll;
using namespace plimsoll::planner;
using namespace plimsoll::planner::search;

namespace {

using Words = std::vector<std::string>;

// Training the whole model on stack pytorch with as little as possible, or as `only` says.
Scope scope_of(const models::ModelSpec& model, const char* gpu, std::int64_t gpus,
               std::int64_t seq_len) {
  Scope scope = tests::scope_of(model, gpu, gpus, seq_len);
  scope.threads = 2;
  scope.most_concession = kMostWithoutPacking;
  scope.fixed = {"optimizer-impl", "kernels"};
  scope.only = {{"stack", {"pytorch"}},  {"recompute", {"full"}}, {"attention", {"flash"}},
                {"loss", {"fused"}},     {"adapters", {"full"}},  {"precision", {"bf16-mixed"}},
                {"shard-group", {"all"}}};
  return scope;
}

Words changes(const Shortage& found) {
  Words out;
  for (const WouldFit& one : found.would_fit) out.push_back(one.change);
  return out;
}

bool fits_on(Scope scope, std::int64_t gpus) {
  scope.gpus = gpus;
  scope.fixed.insert("gpus");
  return !search::search(scope).ranked.empty();
}

}  // namespace

TEST_CASE("of more GPUs the fewest are offered") {
  const models::ModelSpec small = models::catalog_model("gpt2-xl");
  Scope scope = scope_of(small, "4090", 1, 1024);
  scope.base.cluster.memory = 11_GiB;
  REQUIRE_FALSE(fits_on(scope, 1));
  const Shortage found = shortage(scope, {});
  REQUIRE(found.would_fit.size() == 1);  // no shorter rows: states alone are too much
  const std::int64_t gpus = found.would_fit.front().plan.setting.strategy.gpus;
  CHECK(found.would_fit.front().change == "--gpus " + std::to_string(gpus));
  CHECK(found.would_fit.front().gpu == "");
  REQUIRE(gpus > 2);
  REQUIRE(gpus < 8);
  for (std::int64_t fewer = 2; fewer < gpus; ++fewer) CHECK_FALSE(fits_on(scope, fewer));
  scope.fixed.insert("gpus");
  CHECK(changes(shortage(scope, {})).empty());
}

TEST_CASE("beyond 4,096 GPUs nothing is offered") {
  const models::ModelSpec model = models::catalog_model("llama-3.1-405b");
  Scope scope = scope_of(model, "h100", 4096, 4096);
  scope.only["zero"] = {"3"};
  scope.base.batch.micro_batch = 64;  // of one rank: as many tokens however many there are
  scope.base.cluster.memory = 70_GiB;
  scope.fixed.insert("micro-batch");
  scope.only["gpus"] = {"4096"};
  const Shortage found = shortage(scope, {});
  REQUIRE(found.closest.has_value());
  for (const WouldFit& one : found.would_fit) CHECK(!one.change.starts_with("--gpus"));
}

// Twice 2,048 is the last number that is looked at. That the model would fit on one of them too,
// nobody asks: of those up to 4,096 the fewest are named.
TEST_CASE("4,096 GPUs are looked at") {
  const models::ModelSpec model = models::catalog_model("gpt2");
  Scope scope = scope_of(model, "h100", 2048, 512);
  scope.only["zero"] = {"0"};
  scope.base.batch.micro_batch = 1;
  scope.fixed.insert("micro-batch");
  CHECK(std::ranges::count(changes(shortage(scope, {})), "--gpus 1") == 1);
}

// 13 billion parameters: 26 GB in bf16, two cards of 24 GB; with AdamW's states 208 GB, nine, which
// two nodes of eight hold.
TEST_CASE("more GPUs, or another card: with the least concession, and with none") {
  const models::ModelSpec model = models::catalog_model("llama-2-13b");
  Scope scope = scope_of(model, "4090", 1, 512);
  scope.only.erase("adapters");
  const std::vector<models::Gpu> cards = {models::find_gpu("h200"), models::find_gpu("h100"),
                                          models::find_gpu("t4"), models::find_gpu("a100-40gb"),
                                          models::find_gpu("3090")};
  const Shortage found = shortage(scope, cards);
  CHECK(changes(found) ==
        Words{"--gpus 2 with LoRA", "--gpus 16", "--gpu a100-sxm-40gb with LoRA"});
  REQUIRE(found.would_fit.size() == 3);
  CHECK(found.would_fit[0].plan.setting.concession == kAdapters);
  CHECK(found.would_fit[1].plan.setting.concession == 0);
  CHECK(found.would_fit[2].gpu == "a100-sxm-40gb");
  CHECK(found.would_fit[1].gpu == "");
}

// 6.7 billion parameters: 108 GB in mixed precision, of which a card of 52 GiB holds a third; 54 GB
// in bf16 alone.
TEST_CASE("what more GPUs take of precision or of another runtime is said") {
  const models::ModelSpec model = models::catalog_model("llama-2-7b");
  Scope scope = scope_of(model, "h100", 1, 512);
  scope.base.cluster.memory = 52_GiB;
  scope.fixed.insert("optimizer");
  scope.only.erase("precision");
  CHECK(changes(shortage(scope, {})) == Words{"--gpus 2 in pure bf16", "--gpus 3"});
  scope.only["precision"] = {"bf16-mixed"};
  scope.only["stack"] = {"plimsoll"};
  const Words own = changes(shortage(scope, {}));
  REQUIRE(own.size() == 1);
  CHECK(own.front() == "--gpus 3 on stack plimsoll");
  scope.fixed.insert("stack");  // it was asked for
  scope.base.strategy.stack = models::Stack::plimsoll;
  CHECK(changes(shortage(scope, {})) == Words{"--gpus 3"});
}

// A card on which no base of 16 bits fits: what does is packed in 4 bits, and shorter.
TEST_CASE("fewer tokens are offered with every concession that they take") {
  const models::ModelSpec model = models::catalog_model("llama-2-13b");
  Scope scope = scope_of(model, "4090", 1, 4096);
  scope.only.erase("adapters");
  scope.most_concession = 255;
  scope.base.batch.micro_batch = 8;
  scope.fixed.insert({"micro-batch", "gpus"});
  REQUIRE(search::search(scope).ranked.empty());
  const Shortage found = shortage(scope, {});
  REQUIRE(found.would_fit.size() == 1);
  const std::int64_t length = found.would_fit.front().plan.setting.batch.seq_len;
  CHECK(length < 4096);
  CHECK(found.would_fit.front().change ==
        "--seq-len " + std::to_string(length) + " with LoRA on a packed base");
  // One step more is too long.
  scope.base.batch.seq_len = length + 256;
  CHECK(search::search(scope).ranked.empty());
}
