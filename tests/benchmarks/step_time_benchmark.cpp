// How long one estimate of a step's time takes; a search asks for hundreds of thousands.
#include <benchmark/benchmark.h>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "planner/time/step_time.h"

using namespace plimsoll;

namespace {

void step_time(benchmark::State& state, int zero, models::RecomputeKind recompute) {
  const models::ModelSpec model = models::catalog_model("llama-3.1-70b");
  models::Strategy s;
  s.gpus = 64;
  s.data.zero = zero;
  s.recompute.kind = recompute;
  models::ClusterSpec cluster;
  cluster.gpu = models::find_gpu("h100-sxm-80gb");
  const planner::TimeModel time(planner::model_parts(model, s), cluster);
  models::Batch batch{.seq_len = 8192};
  for (auto _ : state) {
    benchmark::DoNotOptimize(s);
    benchmark::DoNotOptimize(batch);
    benchmark::DoNotOptimize(time(s, batch));
  }
  state.counters["strategies/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

using models::RecomputeKind;
BENCHMARK_CAPTURE(step_time, llama_3_1_70b_zero3, 3, RecomputeKind::none);
BENCHMARK_CAPTURE(step_time, llama_3_1_70b_zero3_full, 3, RecomputeKind::full);
BENCHMARK_CAPTURE(step_time, llama_3_1_70b_ddp, 0, RecomputeKind::none);

}  // namespace

BENCHMARK_MAIN();
