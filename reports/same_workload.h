// Whether a measurement is of the workload that was predicted.
#pragma once

#include <string>
#include <vector>

#include "reports/measurement.h"
#include "reports/prediction.h"

namespace plimsoll::reports {

// Error{bad_input} with the keys that differ: other fingerprints. What is worth a note is returned.
std::vector<std::string> check_same_workload(const Prediction& prediction,
                                             const Measurement& measurement);

}  // namespace plimsoll::reports
