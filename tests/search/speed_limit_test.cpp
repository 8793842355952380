// No plan on fewer GPUs is faster than the limit says, and none fits where it is dropped.
#include "planner/search/speed_limit.h"

#include <doctest/doctest.h>

#include <limits>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "planner/search/axes.h"
#include "planner/time/hardware_flops.h"

using namespace plimsoll;
using namespace plimsoll::planner;
using namespace plimsoll::planner::search;

namespace {

struct Case {
  const char *model, *gpu;
  std::int64_t gpus, node, seq_len;
  std::optional<std::int64_t> global_batch;
};

constexpr Case kCases[] = {
    {"gpt2", "4090", 8, 4, 1024, std::nullopt},
    {"qwen2-0.5b", "t4", 8, 8, 512, 24},
    {"llama-3.2-1b", "a100-40gb", 8, 4, 2048, 48},
    {"llama-3.1-8b", "h100-sxm-80gb", 32, 8, 4096, std::nullopt},
};

}  // namespace

TEST_CASE("fewer GPUs stay below the limit, and what it drops fits on none") {
  std::int64_t checked = 0;
  for (const Case& c : kCases) {
    const models::ModelSpec model = models::catalog_model(c.model);
    Scope scope;
    scope.base.model = &model;
    scope.base.cluster.gpu = models::find_gpu(c.gpu);
    scope.base.strategy.gpus = scope.gpus = c.gpus;
    scope.base.strategy.gpus_per_node = c.node;
    scope.base.batch.seq_len = c.seq_len;
    scope.global_batch = c.global_batch;
    const Space space(scope);
    KnownSteps known;
    Evaluator evaluator(scope, space, &known);
    for (const int concession : {0, 1}) {
      SpeedLimit limit(scope, space, evaluator, concession, c.gpus);
      for (const GpuCount& count : gpu_counts(scope)) {
        if (count.gpus == c.gpus) continue;
        // Asked for closely: every kind that could be the fastest is looked at.
        const double most = limit.of(count.gpus, 0);
        const std::vector<Setting> all =
            families(scope, {.concession = concession, .gpus = count.gpus});
        for (std::size_t f = 0; f < all.size(); f += 5) {
          for (const models::Batch& batch : batches(scope, all[f])) {
            if (space.throughput(all[f], batch).tokens_per_second <= most * (1 + 1e-9)) continue;
            // Faster: then it must not fit.
            CAPTURE(c.model);
            CAPTURE(options_of(all[f]));
            CAPTURE(batch.micro_batch);
            const auto need = evaluator.need(all[f], batch);
            REQUIRE((!need || need->counted() > *space.usable()));
            ++checked;
          }
        }
      }
    }
  }
  CHECK(checked > 1000);
}

// What a step takes that waits for the host is not predicted: such plans go by tokens for each
// operation of arithmetic, of which a row has as many in whatever micro-batch.
TEST_CASE("plans of unknown time go by their arithmetic, which counts rows alike") {
  for (const char* name : {"gpt2", "llama-3.2-1b", "mixtral-8x7b"}) {
    const models::ModelSpec model = models::catalog_model(name);
    Scope scope;
    scope.base.model = &model;
    scope.base.cluster.gpu = models::find_gpu("h100");
    scope.base.strategy.gpus = scope.gpus = 8;
    scope.base.strategy.data.zero = 3;
    scope.base.strategy.offload.params = true;
    const Space space(scope);
    Setting x{.strategy = scope.base.strategy, .batch = scope.base.batch};
    Question question = scope.base;
    for (const std::int64_t length : {256, 1000}) {
      question.batch = {.seq_len = length, .micro_batch = 1};
      const double one = hardware_flops(question, space.parts(x));
      for (const std::int64_t rows : {1, 2, 4, 7}) {
        const Throughput of = space.throughput(x, {.seq_len = length, .micro_batch = rows});
        CHECK_FALSE(of.known);
        CHECK(of.tokens_per_second == static_cast<double>(8 * length) * 8 / one);
        question.batch.micro_batch = rows;
        CHECK(hardware_flops(question, space.parts(x)) == static_cast<double>(rows) * one);
      }
    }
  }
}
