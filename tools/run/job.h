// What a plan's document asks to be run.
#pragma once

#include <optional>
#include <string>

#include "models/model_spec.h"
#include "models/workload_reader.h"
#include "tools/run/run_options.h"

namespace plimsoll::tools {

struct Job {
  models::Workload workload;
  std::string workload_json;  // as it stands in the document
  models::ModelSpec model;
  std::optional<Bytes> memory;  // of each rank
};

// Error{bad_input}: a plan of another stack, of a bare count, one that was edited, another number
// of ranks than `options` say, or another device.
Job job_from(const std::string& plan, const std::string& source, const RunOptions& options);

// What ranks exchange, and where they add, is part of the plan. Error{bad_input}: here they do it
// otherwise. Error{device}: no GPU.
void expect_launch(const models::Strategy& strategy);

}  // namespace plimsoll::tools
