// A plan's workload, run for real.
#pragma once

#include <functional>

#include "reports/measurement.h"
#include "reports/plan_json.h"
#include "tools/run/job.h"
#include "tools/run/progress.h"
#include "tools/run/run_options.h"

namespace plimsoll::tools {

// Runs the steps on all ranks of this process, or on this one of an MPI job. What was measured is
// returned on rank 0 (of other processes: no ranks). An error of training becomes the outcome of
// the measurement, but for Error{bad_input} and Error{unsupported}. Where an error ends several
// processes it does not come back, and `record` has the measurement before they end, on rank 0.
reports::Measurement train(const Job& job, const RunOptions& options, const reports::Tool& tool,
                           Progress& progress,
                           const std::function<void(const reports::Measurement&)>& record);

}  // namespace plimsoll::tools
