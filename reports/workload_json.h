// The workload of a plan as JSON: what was asked, in the words that tools/oracle/README.md defines.
#pragma once

#include <string>

#include "models/workload_reader.h"
#include "reports/json_writer.h"
#include "reports/record.h"

namespace plimsoll::reports {

// Everything that decides the answer but the machine, keys sorted, without the fingerprint and the
// model's name; two ways of naming one model have equal texts where their configurations are equal.
std::string canonical_workload(const Plan& plan);

// The fingerprint of a workload that was read, computed anew.
std::string fingerprint_of(const models::Workload& workload);

// The object of the document, with plan.fingerprint.
void write_workload(JsonWriter& json, const Plan& plan);

// Its parts by themselves.
void write_strategy(JsonWriter& json, const models::Strategy& strategy);
void write_batch(JsonWriter& json, const models::Batch& batch);

}  // namespace plimsoll::reports
