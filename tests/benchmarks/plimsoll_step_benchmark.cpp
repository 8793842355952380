// How fast a strategy of our own runtime is turned into its step program and its peak.
#include <benchmark/benchmark.h>

#include "models/model_catalog.h"
#include "planner/program/peak.h"
#include "planner/stacks/plimsoll/step.h"

using namespace plimsoll;

namespace {

// The model's parts are prepared once, as a search does; the program's memory is reused.
void program_and_peak(benchmark::State& state, int zero, models::RecomputeKind recompute,
                      std::int64_t micro_batches) {
  const models::ModelSpec model = models::catalog_model("llama-3.1-70b");
  models::Strategy s;
  s.stack = models::Stack::plimsoll;
  s.gpus = 64;
  s.data.zero = zero;
  s.recompute.kind = recompute;
  const planner::ModelParts parts = planner::model_parts(model, s);
  const models::Batch batch{.seq_len = 8192, .grad_accum = micro_batches};
  models::StepProgram program;
  planner::PeakFinder finder;
  for (auto _ : state) {
    planner::plimsoll_stack::StepWriter(program, parts, s, batch, {}).write();
    benchmark::DoNotOptimize(finder.find(program));
  }
  state.counters["strategies/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.counters["ops"] = static_cast<double>(program.ops.size());
  state.counters["tensors"] = static_cast<double>(program.tensors.size());
}

using models::RecomputeKind;
BENCHMARK_CAPTURE(program_and_peak, plimsoll_llama_3_1_70b_zero3, 3, RecomputeKind::none, 1);
BENCHMARK_CAPTURE(program_and_peak, plimsoll_llama_3_1_70b_zero3_full, 3, RecomputeKind::full, 1);
BENCHMARK_CAPTURE(program_and_peak, plimsoll_llama_3_1_70b_zero3_accumulating, 3,
                  RecomputeKind::full, 8);
BENCHMARK_CAPTURE(program_and_peak, plimsoll_llama_3_1_70b_zero3_sqrt, 3, RecomputeKind::sqrt, 1);
BENCHMARK_CAPTURE(program_and_peak, plimsoll_llama_3_1_70b_ddp, 0, RecomputeKind::none, 1);

}  // namespace

BENCHMARK_MAIN();
