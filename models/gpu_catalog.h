// The GPUs that plimsoll knows by name (models/specs/gpus.json). Parses only the one asked for.
#pragma once

#include <string_view>
#include <vector>

#include "models/cluster_spec.h"
#include "models/run_spec.h"

namespace plimsoll::models {

std::vector<Gpu> all_gpus();  // in the file's order: by vendor and generation

// By name or alias ("h100", "4090", "a100-40gb"), in any case. Error{bad_input} with the nearest
// name where no GPU is called so. Its pcie_bandwidth is 0 where GPU and host share one memory.
Gpu find_gpu(std::string_view name);

// Error{bad_input} where the card multiplies no float8, which `precision` asks for: its tensor
// cores begin with compute capability 8.9 (torch._scaled_mm, cublasLtMatmul).
void check_products(const Gpu& gpu, Precision precision);

}  // namespace plimsoll::models
