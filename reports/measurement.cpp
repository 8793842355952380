#include "reports/measurement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace plimsoll::reports {

void judge_training(Measurement& m) {
  const auto tell = [&](const char* outcome, std::string message, std::int64_t step) {
    m.outcome = outcome;
    m.error = Failure{"training", std::move(message), step};
  };
  const auto finite = [](const std::optional<double>& x) { return !x || std::isfinite(*x); };
  for (const MeasuredStep& step : m.steps) {
    // Gradients of a step that was skipped have overflowed: loss scaling looks for that.
    const bool loss = finite(step.loss);
    if (loss && (step.skipped || finite(step.grad_norm))) continue;
    return tell("diverged",
                fmt::format("the {} of step {} of {} is not finite: the run does not train",
                            loss ? "gradient norm" : "loss", step.step, m.steps.back().step),
                step.step);
  }
  if (!m.steps.empty() && std::ranges::all_of(m.steps, &MeasuredStep::skipped))
    tell("not_stepped",
         fmt::format("gradients overflowed in each of {} steps and the optimizer took none: give "
                     "more --steps (loss scaling halves its scale each time)",
                     m.steps.size()),
         m.steps.back().step);
}

}  // namespace plimsoll::reports
