// The document `plimsoll.measurement/1` (reports/schema/measurement.schema.json) as plimsoll-run
// writes it.
#pragma once

#include "reports/comparison.h"
#include "reports/json_writer.h"
#include "reports/measurement.h"
#include "reports/plan_json.h"

namespace plimsoll::reports {

// `comparison`: with the prediction that was made before the run; nullptr: none.
void write_measurement(JsonWriter& json, const Measurement& measurement, const Tool& tool,
                       const Comparison* comparison);

// One element of "ranks": how a rank hands what it measured to rank 0.
void write_measured_rank(JsonWriter& json, const MeasuredRank& rank);

}  // namespace plimsoll::reports
