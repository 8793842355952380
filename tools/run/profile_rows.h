// A profiled step, in the words of the document.
#pragma once

#include <optional>
#include <vector>

#include "reports/measurement.h"
#include "runtime/profile.h"

namespace plimsoll::tools {

// Calls of one kernel in one op of all layers are one row. `peak_flops` and `bytes_per_second`: the
// device's, where they are known.
reports::Profile profile_of(const std::vector<runtime::KernelCost>& costs, double step_seconds,
                            std::optional<double> peak_flops,
                            std::optional<double> bytes_per_second);

reports::LibraryNotes notes_of(const runtime::LibraryUse& use);

}  // namespace plimsoll::tools
