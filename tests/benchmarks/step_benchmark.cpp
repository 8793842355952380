// How fast a strategy is turned into its step program and its peak.
#include <benchmark/benchmark.h>

#include "models/model_catalog.h"
#include "planner/program/peak.h"
#include "planner/program/size_recorder.h"
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

// As a search writes: for the peak alone, without the blocks that an allocator's replay asks for.
planner::pytorch::Rules quick() {
  planner::pytorch::Rules rules;
  rules.each_parameter = false;
  return rules;
}

// Program and allocated peak of one strategy, from nothing but the model's parts.
void program_and_peak(benchmark::State& state, const char* name, int zero,
                      models::RecomputeKind recompute) {
  const models::ModelSpec model = models::catalog_model(name);
  const models::Strategy s = strategy(zero, recompute);
  const planner::ModelParts parts = planner::model_parts(model, s);
  const models::Batch batch{.seq_len = 8192};
  models::StepProgram program;
  planner::PeakFinder finder;
  for (auto _ : state) {
    planner::pytorch::step_writer(program, parts, s, batch, quick())->write();
    benchmark::DoNotOptimize(finder.find(program));
  }
  state.counters["strategies/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.counters["ops"] = static_cast<double>(program.ops.size());
  state.counters["tensors"] = static_cast<double>(program.tensors.size());
}

// Of the same program with other batches.
void batch_and_peak(benchmark::State& state, const char* name, int zero,
                    models::RecomputeKind recompute) {
  const models::ModelSpec model = models::catalog_model(name);
  const models::Strategy s = strategy(zero, recompute);
  const planner::ModelParts parts = planner::model_parts(model, s);
  models::Batch batch{.seq_len = 8192, .micro_batch = 2};
  models::StepProgram program;
  planner::SizeRecorder recorder(batch, program);
  planner::pytorch::step_writer(program, parts, s, batch, quick())->write();
  planner::BatchSizes sizes = recorder.finish();
  planner::PeakFinder finder;
  planner::PeakFinder::Known known;
  finder.find(program, 0, known);
  for (auto _ : state) {
    batch.micro_batch = batch.micro_batch % 8 + 2;
    if (!sizes.write(batch, program)) return state.SkipWithError("another class of batches");
    benchmark::DoNotOptimize(finder.find_resized(program, sizes.equal(), sizes.largest(), known));
  }
  state.counters["strategies/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
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
BENCHMARK_CAPTURE(batch_and_peak, llama_3_1_70b_zero3, "llama-3.1-70b", 3, RecomputeKind::none);
BENCHMARK_CAPTURE(batch_and_peak, gpt2_xl_ddp, "gpt2-xl", 0, RecomputeKind::none);
BENCHMARK(unrolled_peak);

}  // namespace

BENCHMARK_MAIN();
