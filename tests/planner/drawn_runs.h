// Runs that nobody chose (tools/oracle/drawn_runs.py), each beside its plan.
#pragma once

#include <string>
#include <vector>

#include "models/base/quantity.h"

namespace plimsoll::tests {

struct DrawnRun {
  std::string name, about;
  std::string refusal;  // else it was planned
  Bytes planned_peak, planned_reserved;
  Bytes peak, reserved;
  Bytes unlucky;  // planned, after unlucky steps
  double peak_error() const { return planned_peak.real() / peak.real() - 1; }
  double reserved_error() const { return planned_reserved.real() / reserved.real() - 1; }
  double unlucky_error() const { return unlucky.real() / reserved.real() - 1; }
};

std::vector<DrawnRun> drawn_runs(const std::string& file);

}  // namespace plimsoll::tests
