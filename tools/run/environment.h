// Where a run took place.
#pragma once

#include "reports/measurement.h"
#include "reports/plan_json.h"
#include "runtime/device.h"

namespace plimsoll::tools {

// Of the environment variables only those that change what a run does, by name.
reports::Environment environment_of(const runtime::Device& device, std::optional<Bytes> capacity,
                                    const reports::Tool& tool);

std::string utc_now();  // 2026-01-31T12:00:00Z

}  // namespace plimsoll::tools
