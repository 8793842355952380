// The question inside a document: `workload` of plimsoll.plan/1 and plimsoll.measurement/1.
#pragma once

#include <string>
#include <string_view>

#include "models/run_spec.h"

namespace plimsoll::models {

struct Workload {
  std::string fingerprint;  // "": the document has none
  std::string model_name;  // "": a bare parameter count
  std::string model_config;  // the Hugging Face configuration as JSON; "": a bare parameter count
  Strategy strategy;
  Batch batch;
};

// `text` is a plan, a measurement, or the workload object itself. Error{bad_input} naming `source`
// and the field, for a document of another kind, missing fields and values outside the schema.
Workload read_workload(std::string_view text, const std::string& source);

}  // namespace plimsoll::models
