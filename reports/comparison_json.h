// The document `plimsoll.comparison/1` (reports/schema/comparison.schema.json).
#pragma once

#include <span>

#include "reports/comparison.h"
#include "reports/json_writer.h"
#include "reports/plan_json.h"

namespace plimsoll::reports {

// One comparison is the document; several are a list in it.
void write_comparisons(JsonWriter& json, std::span<const Comparison> comparisons, const Tool& tool);

// The members of one, inside an object that is open: what a measurement says about its prediction.
void write_comparison_members(JsonWriter& json, const Comparison& comparison);

}  // namespace plimsoll::reports
