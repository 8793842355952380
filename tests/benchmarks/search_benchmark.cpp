// How fast strategies are evaluated, each with the peak of its whole step, and whole spaces
// searched.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "models/run_names.h"
#include "planner/search/axes.h"
#include "planner/search/reasons.h"
#include "planner/search/search.h"

using namespace plimsoll;
using namespace plimsoll::planner;

namespace {

search::Scope scope_of(const models::ModelSpec& model, const char* gpu, std::int64_t gpus,
                       std::int64_t seq_len) {
  search::Scope scope;
  scope.base.model = &model;
  scope.base.cluster.gpu = models::find_gpu(gpu);
  scope.base.strategy.gpus = scope.gpus = gpus;
  scope.base.batch.seq_len = seq_len;
  scope.threads = 2;
  return scope;
}

// Training the whole model in mixed precision, whatever a stack itself concedes.
std::vector<search::Setting> least_conceding(std::vector<search::Setting> families) {
  std::map<models::Stack, int> least;
  for (const search::Setting& family : families) {
    const auto [entry, is_new] = least.try_emplace(family.strategy.stack, family.concession);
    if (!is_new) entry->second = std::min<int>(entry->second, family.concession);
  }
  std::erase_if(families, [&](const search::Setting& f) {
    return f.concession != least.at(f.strategy.stack);
  });
  return families;
}

// Every point of the space that training the whole model in mixed precision on 64 GPUs has, one
// after another, as the search asks: family by family, batches upwards. One core. Of one stack, or
// of all that a search looks at. Without `long_ones` checkpoints of one layer at most: one of k
// layers has k times its operations.
void every_point(benchmark::State& state, std::optional<models::Stack> stack, bool long_ones) {
  const models::ModelSpec model = models::catalog_model("llama-3.1-70b");
  search::Scope scope = scope_of(model, "h100-sxm-80gb", 64, 8192);
  if (stack) scope.only["stack"] = {std::string(models::name_of(*stack))};
  if (!long_ones) scope.without["recompute"] = {"every", "sqrt"};
  const auto families = least_conceding(search::families(scope, {.gpus = 64}));
  const search::Space space(scope);
  std::int64_t points = 0, refused = 0;
  for (auto _ : state) {
    search::KnownSteps known;
    search::Evaluator evaluator(scope, space, &known);
    for (const search::Setting& family : families)
      for (const models::Batch& batch : search::batches(scope, family)) {
        if (batch.tokens() > space.most_tokens(family)) break;
        const auto need = evaluator.need(family, batch);
        benchmark::DoNotOptimize(need);
        ++(need ? points : refused);
      }
  }
  state.counters["strategies/s"] =
      benchmark::Counter(static_cast<double>(points), benchmark::Counter::kIsRate);
  state.counters["strategies"] =
      static_cast<double>(points) / static_cast<double>(state.iterations());
  state.counters["refused"] =
      static_cast<double>(refused) / static_cast<double>(state.iterations());
}

void whole_space(benchmark::State& state, const char* name, const char* gpu, std::int64_t gpus,
                 bool reasons) {
  const models::ModelSpec model = models::catalog_model(name);
  const search::Scope scope = scope_of(model, gpu, gpus, 8192);
  std::int64_t evaluated = 0, points = 0;
  for (auto _ : state) {
    const search::Result result = search::search(scope);
    evaluated = result.evaluated;
    points = result.points;
    if (reasons) benchmark::DoNotOptimize(search::reasons(scope, result.ranked, {}));
  }
  state.counters["evaluated"] = static_cast<double>(evaluated);
  state.counters["points"] = static_cast<double>(points);
}

using models::Stack;
#define EVERY(name, ...) \
  BENCHMARK_CAPTURE(every_point, name, __VA_ARGS__)->Unit(benchmark::kMillisecond)
EVERY(llama_3_1_70b, std::nullopt, true);
EVERY(llama_3_1_70b_pytorch_by_layers, Stack::pytorch, false);
EVERY(llama_3_1_70b_deepspeed_by_layers, Stack::deepspeed, false);
EVERY(llama_3_1_70b_plimsoll_by_layers, Stack::plimsoll, false);
EVERY(llama_3_1_70b_pytorch_all, Stack::pytorch, true);
EVERY(llama_3_1_70b_deepspeed_all, Stack::deepspeed, true);
EVERY(llama_3_1_70b_plimsoll_all, Stack::plimsoll, true);
#define WHOLE(name, ...)                            \
  BENCHMARK_CAPTURE(whole_space, name, __VA_ARGS__) \
      ->Unit(benchmark::kMillisecond)               \
      ->UseRealTime()                               \
      ->MeasureProcessCPUTime()
WHOLE(llama_3_1_8b_8_gpus, "llama-3.1-8b", "a100-80gb", 8, false);
WHOLE(llama_3_1_8b_8_gpus_with_reasons, "llama-3.1-8b", "a100-80gb", 8, true);
WHOLE(llama_3_1_70b_64_gpus, "llama-3.1-70b", "h100-sxm-80gb", 64, false);
WHOLE(llama_3_1_70b_1024_gpus, "llama-3.1-70b", "h100-sxm-80gb", 1024, false);

}  // namespace

BENCHMARK_MAIN();
