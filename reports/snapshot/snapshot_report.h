// The comparison with a snapshot for people and for programs.
#pragma once

#include <span>
#include <string>

#include "reports/json_writer.h"
#include "reports/plan_json.h"
#include "reports/snapshot/snapshot_comparison.h"
#include "reports/text.h"

namespace plimsoll::reports {

std::string snapshot_table(const SnapshotComparison& comparison, const Terminal& terminal);

// `plimsoll.snapshot_comparison/1`: of one the comparison, of several a list.
void write_snapshot_comparisons(JsonWriter& json, std::span<const SnapshotComparison> comparisons,
                                const Tool& tool);

}  // namespace plimsoll::reports
