// Faults in a rank's memory on the host (--offload optimizer): held against what is planned there.
#include <doctest/doctest.h>

#include <functional>

#include "tests/honesty/defective_plan.h"
#include "tests/honesty/scenario.h"
#include "tests/honesty/seams.h"

namespace plimsoll::honesty {
namespace {

using models::Phase;
using models::StepProgram;

Case offloaded(std::int64_t ranks, int zero) {
  Case c = llama(ranks, zero);
  c.strategy.precision = models::Precision::bf16_mixed;
  c.strategy.offload.optimizer = true;
  return c;
}

std::string difference_of(const Case& planned, const witness::Measured& run,
                          const std::function<void(StepProgram&)>& edit = {}) {
  witness::Predicted plan = witness::predicted_on_host(planned);
  if (edit) edit(plan.program);
  plan.timeline = planner::unroll(plan.program, planner::Repeats::all);
  for (const auto& steps : run.ranks) {
    const std::string difference = witness::first_difference(plan, steps[0].host_memory);
    if (!difference.empty()) return difference;
  }
  return "";
}

void check_named(const char* what, const std::string& difference, const char* named) {
  CAPTURE(what);
  CAPTURE(difference);
  CHECK(difference.find(named) != std::string::npos);
}

// 6000 elements of a layer (planner_faults_test.cpp): 3000 for either rank, and 3000 is a multiple
// of 8: 6000 B in bf16, 12000 B of a moment in fp32.
TEST_CASE("a wrong plan of the host's memory is caught, and the tensor named") {
  for (const int zero : {1, 2, 3}) {
    const Case c = offloaded(2, zero);
    const witness::Measured run = witness::measured(c);
    CHECK(difference_of(c, run) == "");
    const auto check = [&](const char* what, const std::function<void(StepProgram&)>& edit,
                           const char* named) {
      check_named(what, difference_of(c, run, edit), named);
    };
    check(
        "moments in 16 bits",
        [](StepProgram& p) {
          CHECK(tensor(p, "exp_avg").bytes == Bytes(12000));
          tensor(p, "exp_avg").bytes = Bytes(6000);
        },
        "layers.0.exp_avg of 6000 B");
    check(
        "whole gradients copied, and not a piece",
        [](StepProgram& p) {
          CHECK(tensor(p, "gradients.host").bytes == Bytes(6000));
          tensor(p, "gradients.host").bytes = Bytes(12000);
        },
        "layers.0.gradients.host of 12000 B");
    check(
        "a buffer for the weights that stays",
        [](StepProgram& p) {
          tensor(p, "parameters.host").residency = models::Residency::persistent;
        },
        "layers.0.parameters.host");
    check(
        "no copy of the scalars",
        [](StepProgram& p) { tensor(p, "scalars.host").bytes = Bytes(0); }, "scalars.host");
    check(
        "a unit that is not stepped on the host",
        [](StepProgram& p) { leave_out(p, "tail.optimizer.step", Phase::optimizer); },
        "tail.optimizer.step");
  }
}

TEST_CASE("what a run does otherwise in the host's memory is caught, and the tensor named") {
  const Case c = offloaded(2, 3);
  const auto kept = [&](const char* name) {
    return difference_of(c, run_with({.kept = Kept{name, kForLong}}, c));
  };
  CHECK(difference_of(c, run_with({}, c)) == "");
  check_named("a buffer that leaks", kept("layers.1.gradients.host"), "layers.1.gradients.host");
  check_named("weights kept for the next unit", kept("embedding.parameters.host"),
              "embedding.parameters.host");
  Case other = c;
  other.strategy.optimizer = models::Optimizer::lion;
  check_named("one moment instead of two", difference_of(c, witness::measured(other)),
              "exp_avg_sq");
  other = c;
  other.strategy.data.zero = 0;
  check_named("whole states", difference_of(c, witness::measured(other)), "embedding.exp_avg");
}

// Held against the device's plan: states that were planned on the host.
TEST_CASE("states that stayed on the device are caught and named") {
  const Case c = offloaded(2, 2);
  Case other = c;
  other.strategy.offload.optimizer = false;
  const auto prediction = prediction_of(c, witness::predicted(c));
  CHECK(first_difference(prediction, witness::measured(c)) == "");
  check_named("not offloaded", first_difference(prediction, witness::measured(other)),
              "embedding.exp_avg");
}

}  // namespace
}  // namespace plimsoll::honesty
