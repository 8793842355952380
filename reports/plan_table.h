// A plan for reading in a terminal: the verdict first, then where the memory goes.
#pragma once

#include <string>
#include <vector>

#include "reports/record.h"
#include "reports/text.h"

namespace plimsoll::reports {

// Lines of at most terminal.columns, each with its line feed.
std::string plan_table(const Plan& plan, const Terminal& terminal);

// Whether its room ends below its high end. Measured: reports/evidence/2026-11-26-h100-80gb-hbm3/
// edge-1b-bf16-under.json, planned with 1 GiB to spare, ran out of memory, since its script makes
// the model on the GPU and a cached segment of 0.5 GiB served other requests.
bool fits_barely(const Plan& plan);

// What of it several tables have: changes that would help (there must be one).
std::string remedies_table(const std::vector<Remedy>& remedies, const Terminal& terminal);

}  // namespace plimsoll::reports
