// How long one estimate of a step's time takes; a search asks for hundreds of thousands.
#include <benchmark/benchmark.h>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "planner/stacks/stack_info.h"
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

// What a strategy sends, found once for all of its batches.
void messages(benchmark::State& state, models::Stack stack, int zero) {
  const models::ModelSpec model = models::catalog_model("llama-3.1-70b");
  models::Strategy s;
  s.stack = stack;
  s.gpus = 64;
  s.data.zero = zero;
  const planner::ModelParts parts = planner::model_parts(model, s);
  for (auto _ : state) {
    planner::Messages out;
    planner::stack_info(stack).write_messages(parts, s, out);
    benchmark::DoNotOptimize(out.data());
  }
}

using models::RecomputeKind;
using models::Stack;
BENCHMARK_CAPTURE(step_time, llama_3_1_70b_zero3, 3, RecomputeKind::none);
BENCHMARK_CAPTURE(step_time, llama_3_1_70b_zero3_full, 3, RecomputeKind::full);
BENCHMARK_CAPTURE(step_time, llama_3_1_70b_ddp, 0, RecomputeKind::none);
BENCHMARK_CAPTURE(messages, pytorch_ddp, Stack::pytorch, 0);
BENCHMARK_CAPTURE(messages, pytorch_zero1, Stack::pytorch, 1);
BENCHMARK_CAPTURE(messages, pytorch_zero3, Stack::pytorch, 3);
BENCHMARK_CAPTURE(messages, plimsoll_zero3, Stack::plimsoll, 3);
BENCHMARK_CAPTURE(messages, deepspeed_zero2, Stack::deepspeed, 2);
BENCHMARK_CAPTURE(messages, deepspeed_zero3, Stack::deepspeed, 3);

}  // namespace

BENCHMARK_MAIN();
