#include "reports/traces/step_history.h"

#include "models/base/error.h"

namespace plimsoll::reports {

StepHistory history_of(const Plan& plan) {
  StepHistory out{.model = plan.model_name,
                  .fingerprint = plan.fingerprint,
                  .rank = plan.peak_place.rank,
                  .peak = plan.peak,
                  .ops = plan.timeline,
                  .collectives = plan.collectives,
                  .step_seconds = plan.time.step_seconds};
  const auto end = static_cast<std::int64_t>(plan.timeline.size());
  for (const TensorLine& tensor : plan.tensors) {
    check(tensor.repeat == 1, ErrorKind::internal, [&] {
      return "a trace of a plan without full detail: " + tensor.name + " stands for several";
    });
    // Without ops: what the allocator holds beyond the tensors, all the step long.
    out.tensors.push_back({tensor.name, tensor.category, tensor.bytes, tensor.born_op.value_or(-1),
                           tensor.dies_op.value_or(end)});
  }
  return out;
}

}  // namespace plimsoll::reports
