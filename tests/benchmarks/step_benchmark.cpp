// How fast a strategy is turned into its step program and its peak.
#include <benchmark/benchmark.h>

#include "models/model_catalog.h"
#include "planner/program/peak.h"
#include "planner/program/timeline.h"
#include "planner/stacks/pytorch/stack.h"

using namespace plimsoll;

namespace {

models::Strategy strategy(int zero, models::RecomputeKind recompute) {
  models::Strategy s;
  s.gpus = 64;
  s.data.zero = zero;
  s.recompute.kind = recompute;
  return s;
}

// Program and allocated peak of one strategy; the model's parts are prepared once, as a search
// does.
void program_and_peak(benchmark::State& state, const char* name, int zero,
                      models::RecomputeKind recompute) {
  const models::ModelSpec model = models::catalog_model(name);
  const models::Strategy s = strategy(zero, recompute);
  const planner::ModelParts parts = planner::model_parts(model, s);
  const models::Batch batch{.seq_len = 8192};
  const planner::pytorch::Rules rules;
  models::StepProgram program;
  planner::PeakFinder finder;
  for (auto _ : state) {
    planner::pytorch::step_writer(program, parts, s, batch, rules)->write();
    benchmark::DoNotOptimize(finder.find(program));
  }
  state.counters["strategies/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.counters["ops"] = static_cast<double>(program.ops.size());
  state.counters["tensors"] = static_cast<double>(program.tensors.size());
}

// The same peak by unrolling all layers: what the folded sweep is measured against.
void unrolled_peak(benchmark::State& state) {
  const models::ModelSpec model = models::catalog_model("llama-3.1-70b");
  const models::Strategy s = strategy(3, models::RecomputeKind::full);
  const planner::ModelParts parts = planner::model_parts(model, s);
  models::StepProgram program;
  for (auto _ : state) {
    planner::pytorch::step_writer(program, parts, s, models::Batch{.seq_len = 8192},
                                  planner::pytorch::Rules{})
        ->write();
    benchmark::DoNotOptimize(planner::unroll(program));
  }
}

using models::RecomputeKind;
BENCHMARK_CAPTURE(program_and_peak, llama_3_1_70b_zero3, "llama-3.1-70b", 3, RecomputeKind::none);
BENCHMARK_CAPTURE(program_and_peak, llama_3_1_70b_zero3_full, "llama-3.1-70b", 3,
                  RecomputeKind::full);
BENCHMARK_CAPTURE(program_and_peak, llama_3_1_70b_ddp, "llama-3.1-70b", 0, RecomputeKind::none);
BENCHMARK_CAPTURE(program_and_peak, gpt2_xl_ddp, "gpt2-xl", 0, RecomputeKind::none);
BENCHMARK(unrolled_peak);

}  // namespace

BENCHMARK_MAIN();
