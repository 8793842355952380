// fleet.json: pools of GPUs, and jobs that are to run on them at the same time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reports/fleet.h"
#include "tools/cli/options.h"

namespace plimsoll::tools {

struct FleetQuery {
  std::string model;
  Options options;  // of the job, without GPUs
  std::vector<std::int64_t> sizes;  // numbers of GPUs that it may run on; empty: usual ones
  std::vector<std::string> pools;  // that it may run on; empty: all
};

struct FleetFile {
  reports::Fleet fleet;  // the jobs without their options
  std::vector<Options> of_pool;  // --gpu, --gpus-per-node and what else belongs to the cards
  std::vector<FleetQuery> of_job;
};

// Error{bad_input} naming `source` and the pool or job: not as tools/fleet/README.md says.
FleetFile read_fleet(std::string_view text, const std::string& source);

// A line of QUERIES.jsonl as one more job; its "id" is the name. `number`: of the line.
void add_job(FleetFile& file, std::string_view line, std::int64_t number,
             const std::string& source);

// Names that occur twice or are not there. Error{bad_input}
void check_fleet(const FleetFile& file, const std::string& source);

// Numbers of GPUs that a job is tried on where it names none: 1, 2, 4, … in a node, then 1, 2, 4 …
// nodes, up to what the pool can have and 64.
std::vector<std::int64_t> usual_sizes(const reports::FleetPool& pool);

}  // namespace plimsoll::tools
