// The GPUs that plimsoll knows by name (models/specs/gpus.json). Parses only the one asked for.
#pragma once

#include <string_view>
#include <vector>

#include "models/cluster_spec.h"

namespace plimsoll::models {

std::vector<Gpu> all_gpus();  // in the file's order: by vendor and generation

// By name or alias ("h100", "4090", "a100-40gb"), in any case. Error{bad_input} with the nearest
// name where no GPU is called so. Its pcie_bandwidth is 0 where GPU and host share one memory.
Gpu find_gpu(std::string_view name);

}  // namespace plimsoll::models
