// A plan's workload, run for real.
#pragma once

#include <functional>

#include "models/model_spec.h"
#include "models/workload_reader.h"
#include "reports/measurement.h"
#include "reports/plan_json.h"
#include "tools/run/progress.h"
#include "tools/run/run_options.h"

namespace plimsoll::tools {

// What the document asks to be run.
struct Job {
  models::Workload workload;
  std::string workload_json;  // as it stands in the document
  models::ModelSpec model;
  std::optional<Bytes> memory;  // of each rank
};

// Error{bad_input}: a plan of another stack, of a bare count, one that was edited, another number
// of ranks than `options` say, or another device.
Job job_from(const std::string& plan, const std::string& source, const RunOptions& options);

// Runs the steps on all ranks of this process, or on this one of an MPI job. What was measured is
// returned on rank 0 (of other processes: no ranks). An error of training becomes the outcome of
// the measurement, but for Error{bad_input} and Error{unsupported}. Where an error ends several
// processes it does not come back, and `record` has the measurement before they end, on rank 0.
reports::Measurement train(const Job& job, const RunOptions& options, const reports::Tool& tool,
                           Progress& progress,
                           const std::function<void(const reports::Measurement&)>& record);

}  // namespace plimsoll::tools
