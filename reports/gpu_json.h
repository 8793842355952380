// One card as JSON: in a plan, and an element of `plimsoll.gpus/1`.
#pragma once

#include "models/cluster_spec.h"
#include "reports/json_writer.h"

namespace plimsoll::reports {

// What is known of it; what is not is null.
void write_gpu(JsonWriter& json, const models::Gpu& gpu);

}  // namespace plimsoll::reports
