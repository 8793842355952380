// One step of one rank as the formats of traces need it: every op in order with the memory by
// category at its high-water mark, and every tensor with the ops that bound its life.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/measurement.h"
#include "reports/record.h"
#include "reports/step_ledger.h"

namespace plimsoll::reports {

struct StepHistory {
  std::string origin = "planned";  // or "measured"
  std::string model, fingerprint;
  std::int64_t rank = 0;
  Bytes peak;
  std::vector<TimelinePoint> ops;
  std::vector<TensorSpan> tensors;
  std::vector<Collective> collectives;  // of the whole step
  std::optional<double> step_seconds;
};

// Of a plan with full detail. Error{internal}: of any other plan.
StepHistory history_of(const Plan& plan);

// The last step that the rank's ledgers hold. Error{bad_input} naming the document: no such rank,
// no ledger of it, or ops of which the tensors are not all.
StepHistory history_of(const Measurement& measurement, std::int64_t rank);

}  // namespace plimsoll::reports
