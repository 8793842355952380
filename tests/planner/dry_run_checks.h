// What holds planned steps against dry runs (tests/golden/dry_runs*.json).
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "models/base/quantity.h"
#include "models/model_spec.h"

namespace plimsoll::tests {

double error(Bytes planned, double measured);
// Of a workload: the config that it holds, or the catalog's model.
models::ModelSpec model_of(const nlohmann::json& model);

// Runs that are not within the limits yet, with the reason; one that has come within them fails the
// test, so that the list only shrinks.
using Known = std::map<std::string, std::string>;

// Families whose step programs are not written yet: their runs are counted and left out. One that
// is planned fails the test, so that this list only shrinks too.
using Unplanned = std::set<std::string>;

// Every run of a file: peak within 0.1 %, resident within 0.2 %, reserved within 6 %; and as many
// of them to the byte as the table in dry_run_checks.cpp says.
void check_runs(const std::string& file, const Known& known, std::size_t least,
                const Unplanned& unplanned = {});

// Host memory of a file's runs: pinned to the byte but for what PyTorch pins for a moment (numbers;
// the table of addresses that FSDP2's copy into a reduce-scatter reads, 8 bytes for each 2 KiB of a
// unit's gradients); of pageable storages those below a KiB are not counted (dry_host.py), managed
// ones are none of the plan's host bytes, and bitsandbytes may keep its 256 codes there.
// `mistaken`: the share of pinned bytes that may be planned and is not there.
void check_host(const std::string& file, double mistaken = 0);

// Of the peaks, the least first; none reaches `most`, and as many as in that table are 0.
std::vector<double> drawn_errors(const std::string& file, double most);

}  // namespace plimsoll::tests
