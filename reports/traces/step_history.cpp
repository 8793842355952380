#include "reports/traces/step_history.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/base/error.h"
#include "models/base/utf8.h"

namespace plimsoll::reports {

namespace {
std::size_t category_named(const std::string& name, const std::string& source) {
  for (std::size_t c = 0; c < models::kCategories; ++c)
    if (name == name_of(static_cast<models::Category>(c))) return c;
  fail(ErrorKind::bad_input,
       fmt::format("{}: '{}' is no category of memory", source, shortened(name)));
}

// The ledger's ops, with what of each category lives while they run.
std::vector<TimelinePoint> ops_of(const StepLedger& ledger, const std::string& source) {
  std::vector<std::vector<const TensorSpan*>> born(ledger.ops.size()), died(ledger.ops.size());
  ByCategory live{};
  for (const TensorSpan& tensor : ledger.tensors) {
    if (tensor.born < 0)
      live[category_named(tensor.category, source)] += tensor.bytes;
    else
      born[static_cast<std::size_t>(tensor.born)].push_back(&tensor);
    if (tensor.died < static_cast<std::int64_t>(died.size()))
      died[static_cast<std::size_t>(std::max<std::int64_t>(tensor.died, 0))].push_back(&tensor);
  }
  std::vector<TimelinePoint> out;
  for (std::size_t i = 0; i < ledger.ops.size(); ++i) {
    const OpBoundary& op = ledger.ops[i];
    for (const TensorSpan* tensor : born[i])
      live[category_named(tensor->category, source)] += tensor->bytes;
    check(sum(live) == op.high_water, ErrorKind::bad_input, [&] {
      return fmt::format("{}: the tensors that live during op {}, {}, are not its high-water mark",
                         source, i, op.op);
    });
    out.push_back({op.op, op.phase, op.allocated, op.high_water, live});
    for (const TensorSpan* tensor : died[i])
      live[category_named(tensor->category, source)] -= tensor->bytes;
  }
  return out;
}
}  // namespace

StepHistory history_of(const Measurement& measurement, std::int64_t rank) {
  const auto seen = std::ranges::find(measurement.ranks, rank, &MeasuredRank::rank);
  check(seen != measurement.ranks.end(), ErrorKind::bad_input,
        [&] { return fmt::format("{}: holds no rank {}", measurement.source, rank); });
  check(!seen->ledgers.empty(), ErrorKind::bad_input, [&] {
    return fmt::format("{}: holds no ledger of rank {}'s tensors", measurement.source, rank);
  });
  const auto last = std::ranges::max_element(seen->ledgers, {}, [](const RankLedger& ledger) {
    return ledger.steps.empty() ? 0 : ledger.steps.back();
  });
  StepHistory out{.origin = "measured",
                  .model = measurement.model,
                  .fingerprint = measurement.fingerprint,
                  .rank = rank,
                  .ops = ops_of(last->ledger, measurement.source),
                  .tensors = last->ledger.tensors,
                  .step_seconds = measurement.step_seconds};
  for (const TimelinePoint& op : out.ops) out.peak = std::max(out.peak, op.high_water);
  return out;
}

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
