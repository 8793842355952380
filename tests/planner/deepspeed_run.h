// A run of tools/oracle/deepspeed_measure.py, planned.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <string>
#include <utility>

#include "planner/memory/reserved.h"
#include "planner/program/peak.h"
#include "planner/program/timeline.h"
#include "planner/stacks/deepspeed/stack.h"
#include "planner/stacks/pytorch/stack.h"
#include "tests/planner/oracle_deepspeed.h"
#include "tests/planner/well_formed.h"

namespace plimsoll::tests {

struct Planned {
  models::StepProgram program;
  planner::Start start;
  planner::HostMemory host;
  Bytes managed;
  planner::Timeline timeline;
  planner::Peak peak;
};

inline Planned plan_run(const json& run) {
  const json& workload = run["workload"];
  const models::ModelSpec model = oracle_model_of(workload["model"]);
  planner::Question question;
  question.model = &model;
  question.strategy = deepspeed_strategy_of(workload);
  question.batch = batch_of(workload);
  question.detail = planner::Detail::none;
  const planner::ModelParts parts = planner::model_parts(model, question.strategy);
  planner::pytorch::Rules rules;
  rules.sdpa = planner::pytorch::Rules::Sdpa::flash;  // what a dry run can run
  rules.batch_tensors = question.strategy.rows == models::Rows::full ? 1 : 2;
  rules.granularity = 1;  // requested bytes
  // sm_90: 32 MiB for the forward's and for the backward's thread; 1 MiB where GEMMs add a bias.
  rules.blas = {32_MiB, 32_MiB, planner::pytorch::any_of_lt(parts) ? 1_MiB : 0_MiB};
  planner::StackStep step;
  step.rank = run["rank"];
  planner::deepspeed::write_step(question, parts, rules, step);
  CHECK(ill_formed(step.program) == "");
  Planned out{std::move(step.program), std::move(step.start), step.host, step.managed, {}, {}};
  out.timeline = planner::unroll(out.program);
  out.peak = planner::PeakFinder().find(out.program);
  return out;
}

// What is planned of a run, above what the engine had: parts of that.
struct RunErrors {
  double peak = 0, resident = 0, reserved = 0;
};

inline RunErrors errors_of(const json& run, const Planned& planned) {
  const auto error = [&](Bytes bytes, const char* key) {
    return bytes.real() / run[key].get<double>() - 1;
  };
  const planner::Reserved replayed =
      planner::replay(planned.program, planned.timeline, {}, planned.start);
  return {error(planned.peak.bytes, "peak_bytes"), error(planned.peak.resident, "resident_bytes"),
          error(replayed.reserved, "reserved_bytes")};
}

struct PhaseFigures {
  double planned_peak = 0, planned_end = 0, peak = 0, end = 0;
};

// Forward, backward and step of the last micro-batch.
inline std::map<std::string, PhaseFigures> phases_of(const json& run, const Planned& planned) {
  std::map<std::string, PhaseFigures> out;
  for (const json& phase : run["phases"]) {
    std::string name = phase["phase"];
    while (std::isdigit(static_cast<unsigned char>(name.back()))) name.pop_back();
    PhaseFigures& figures = out[name];
    figures.peak = std::max(figures.peak, phase["peak_bytes"].get<double>());
    figures.end = phase["end_bytes"];
  }
  for (const planner::Moment& moment : planned.timeline.steps) {
    const models::Phase phase = planned.program.ops[moment.at.op].phase;
    PhaseFigures& figures = out[phase == models::Phase::forward     ? "forward"
                                : phase == models::Phase::optimizer ? "step"
                                                                    : "backward"];
    figures.planned_peak = std::max(figures.planned_peak, moment.high_water.real());
    figures.planned_end = moment.after.real();
  }
  return out;
}

}  // namespace plimsoll::tests
