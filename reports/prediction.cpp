#include "reports/prediction.h"

#include "models/decisions/mesh.h"
#include "models/run_names.h"
#include "reports/workload_json.h"

namespace plimsoll::reports {

const RankKind* Prediction::kind_of(std::int64_t rank) const {
  if (rank < 0 || rank >= ranks) return nullptr;
  for (const RankKind& kind : kinds)
    if (kind.has(rank)) return &kind;
  return nullptr;
}

Prediction prediction_of(const Plan& plan) {
  Prediction out;
  out.source = "the prediction";
  out.fingerprint = plan.fingerprint;
  JsonWriter json(out.workload, JsonWriter::Style::compact);
  write_workload(json, plan);
  out.model = plan.model_name;
  out.stack = name_of(plan.strategy.stack);
  out.ranks = models::decisions::mesh_of(plan.strategy).ranks();
  if (plan.capacity) out.fits = plan.fits;
  out.step_seconds = plan.time.step_seconds;
  if (plan.states_only) return out;
  out.resident = plan.resident;
  out.reserved = plan.reserved;
  out.device = plan.device;
  out.overhead = plan.overhead.total();
  out.calibration = plan.calibration;
  if (plan.range) {
    out.range_low = plan.range->low;
    out.range_high = plan.range->high;
  }
  out.kinds = plan.ranks;
  if (plan.tensors.empty() || !plan.tensors.front().born_op) return out;
  StepLedger& step = out.step.emplace();
  for (const TimelinePoint& point : plan.timeline)
    step.ops.push_back({point.op, point.phase, point.allocated, point.high_water});
  for (const TensorLine& line : plan.tensors)
    if (line.born_op && line.dies_op)
      step.tensors.push_back({line.name, line.category, line.bytes, *line.born_op, *line.dies_op});
  return out;
}

}  // namespace plimsoll::reports
