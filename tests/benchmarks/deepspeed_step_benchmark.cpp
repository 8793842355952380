// How fast a DeepSpeed strategy is turned into its step program and its peak.
#include <benchmark/benchmark.h>

#include "models/model_catalog.h"
#include "planner/program/peak.h"
#include "planner/stacks/deepspeed/stack.h"

using namespace plimsoll;

namespace {

void program_and_peak(benchmark::State& state, const char* name, int zero,
                      models::RecomputeKind recompute) {
  const models::ModelSpec model = models::catalog_model(name);
  planner::Question question;
  question.model = &model;
  question.strategy.stack = models::Stack::deepspeed;
  question.strategy.gpus = 64;
  question.strategy.data.zero = zero;
  question.strategy.recompute.kind = recompute;
  question.batch.seq_len = 8192;
  question.detail = planner::Detail::none;
  const planner::ModelParts parts = planner::model_parts(model, question.strategy);
  planner::StackStep step;
  step.program_only = true;
  planner::PeakFinder finder;
  for (auto _ : state) {
    planner::deepspeed::write_step(question, parts, step);
    benchmark::DoNotOptimize(finder.find(step.program));
  }
  state.counters["strategies/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.counters["ops"] = static_cast<double>(step.program.ops.size());
  state.counters["tensors"] = static_cast<double>(step.program.tensors.size());
}

using models::RecomputeKind;
BENCHMARK_CAPTURE(program_and_peak, llama_3_1_70b_zero1, "llama-3.1-70b", 1, RecomputeKind::none);
BENCHMARK_CAPTURE(program_and_peak, llama_3_1_70b_zero2, "llama-3.1-70b", 2, RecomputeKind::none);
BENCHMARK_CAPTURE(program_and_peak, llama_3_1_70b_zero3, "llama-3.1-70b", 3, RecomputeKind::none);
BENCHMARK_CAPTURE(program_and_peak, llama_3_1_70b_zero3_full, "llama-3.1-70b", 3,
                  RecomputeKind::full);
BENCHMARK_CAPTURE(program_and_peak, gpt2_xl_zero2, "gpt2-xl", 2, RecomputeKind::none);

}  // namespace

BENCHMARK_MAIN();
