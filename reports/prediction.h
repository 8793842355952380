// What of a plan can be held against a measurement.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/record.h"
#include "reports/step_ledger.h"

namespace plimsoll::reports {

struct Prediction {
  std::string source;  // the document's file, for messages
  std::string fingerprint;
  std::string workload;  // JSON
  std::string model;  // its name; "": a bare parameter count
  std::string stack;
  std::int64_t ranks = 1;  // the world's
  std::optional<bool> fits;
  std::optional<Bytes> resident, reserved, device, overhead;
  std::optional<Bytes> range_low, range_high;  // of device bytes
  std::optional<models::Calibration> calibration;  // where `outside` was measured
  std::optional<double> step_seconds;
  std::vector<RankKind> kinds;  // without any: model states only
  std::optional<StepLedger> step;  // with full detail; of the first kind of rank
  // What its tensors and ops contradict among themselves: the document was altered. "": nothing.
  std::string contradiction;

  // Our own runtime's plans claim every byte; others are estimates.
  bool exact() const { return stack == "plimsoll"; }
  const RankKind* kind_of(std::int64_t rank) const;  // nullptr: none is claimed
};

Prediction prediction_of(const Plan& plan);

// Error{bad_input} naming `source`: no plimsoll.plan/1, or one that was altered
// (document_check.h).
Prediction read_prediction(std::string_view text, const std::string& source);

}  // namespace plimsoll::reports
