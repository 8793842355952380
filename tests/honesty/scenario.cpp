#include "tests/honesty/scenario.h"

#include <doctest/doctest.h>

#include "models/storages.h"
#include "planner/details.h"
#include "planner/memory/arena_replay.h"
#include "planner/program/peak.h"
#include "tools/run/recorder.h"

namespace plimsoll::honesty {

Case llama(std::int64_t ranks, int zero) {
  Case c;
  c.strategy.stack = models::Stack::plimsoll;
  c.strategy.device = models::Device::cpu;
  c.strategy.precision = models::Precision::fp32;
  c.strategy.gpus = ranks;
  c.strategy.data.zero = zero;
  c.batch = {.seq_len = 10, .micro_batch = 2};
  return c;
}

Case cast(std::int64_t ranks, int zero) {
  Case c = llama(ranks, zero);
  c.strategy.data.reduce_dtype = DType::bf16;
  return c;
}

Case packed(std::int64_t ranks, int zero, std::string_view storage) {
  Case c = llama(ranks, zero);
  c.strategy.precision = models::Precision::bf16_mixed;
  c.strategy.lora = models::Lora{.rank = 3, .alpha = 6, .targets = {"all-linear"}};
  c.strategy.quantize = {.storage = models::find_packed_storage(storage)};
  return c;
}

reports::Prediction prediction_of(const Case& c, const witness::Predicted& predicted) {
  const models::StepProgram& program = predicted.program;
  const planner::Timeline timeline = planner::unroll(program, planner::Repeats::all);
  reports::Plan plan;
  plan.strategy = c.strategy;
  plan.batch = c.batch;
  plan.fingerprint = "honesty";
  planner::add_details(program, timeline, planner::Detail::full, plan);
  plan.peak = timeline.steps[timeline.peak_step].high_water;
  plan.at_peak = planner::categories_at(program, timeline, timeline.peak_step);
  plan.resident = planner::PeakFinder().find(program).resident;
  plan.reserved = planner::arena_reserved(program, timeline);
  plan.states = predicted.states;
  plan.ranks = {{0, c.strategy.gpus, 0, plan.peak, plan.at_peak, plan.states}};
  return reports::prediction_of(plan);
}

reports::Measurement measurement_of(const reports::Prediction& prediction,
                                    const witness::Measured& run) {
  reports::Measurement out;
  out.source = "the measurement";
  out.fingerprint = prediction.fingerprint;
  out.workload = prediction.workload;
  out.world = static_cast<std::int64_t>(run.ranks.size());
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    tools::Recorder recorder(static_cast<std::int64_t>(r), Bytes(0));
    for (std::size_t step = 0; step < run.ranks[r].size(); ++step)
      recorder.add(static_cast<std::int64_t>(step) + 1, run.ranks[r][step]);
    out.ranks.push_back(recorder.rank(run.reserved[r]));
  }
  return out;
}

std::string first_difference(const reports::Prediction& prediction, const witness::Measured& run) {
  const reports::Comparison comparison =
      reports::compare(prediction, measurement_of(prediction, run));
  CHECK(comparison.detailed);
  CHECK(comparison.agrees == comparison.differences.empty());
  if (comparison.agrees) CHECK(comparison.reserved.verdict == reports::Level::Verdict::exact);
  return comparison.first_difference();
}

}  // namespace plimsoll::honesty
