// Plans of workloads that ran on the dry CUDA runtime (tools/oracle/dry_runs.py, drawn_runs.py).
#pragma once

#include <nlohmann/json.hpp>

#include "models/model_spec.h"
#include "planner/host_memory.h"
#include "planner/memory/reserved.h"
#include "planner/stacks/pytorch/rules.h"

namespace plimsoll::tests {

struct DryPlan {
  planner::Reserved planned;
  Bytes unlucky;  // what steps after those reserve by bad luck
  Bytes managed;  // optimizer states beside the allocator
  planner::HostMemory host;  // what is offloaded
  bool bitsandbytes = false;  // packs or steps
};

// Without any limit; Error{unsupported} for what is not planned. `sdpa`: flash is what a dry run
// can run, a GPU may take another.
DryPlan plan_dry_run(const nlohmann::json& workload, const models::ModelSpec& model,
                     planner::pytorch::Rules::Sdpa sdpa = planner::pytorch::Rules::Sdpa::flash);

}  // namespace plimsoll::tests
