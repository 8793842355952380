// The machine as data: one kind of GPU, how many, how they are linked.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/base/dtype.h"
#include "models/base/quantity.h"
#include "models/calibration.h"

namespace plimsoll::models {

// A figure with its pedigree: "published", "measured" or "assumed", and where it stands.
struct SourcedBytes {
  Bytes bytes;
  std::string basis;
  std::string source;
};

struct Gpu {
  std::string name;  // "h100-sxm-80gb"
  std::string title;  // "NVIDIA H100 SXM 80GB"
  std::string vendor;  // "nvidia", "amd"
  std::string family;  // "hopper"
  std::string compute_capability;  // "9.0"; AMD: "gfx942"
  std::vector<std::string> aliases;
  Bytes nominal;  // the box's figure
  std::optional<SourcedBytes> smi_total;  // nvidia-smi, rocm-smi
  SourcedBytes cuda_total;  // cudaMemGetInfo
  // Dense peaks in FLOP/s; absent where the card has no such units.
  std::optional<double> fp32_flops, tf32_flops, bf16_flops, fp16_flops, fp8_flops, fp4_flops;
  std::optional<double> int8_ops;
  double memory_bandwidth = 0;  // bytes/s
  std::optional<double> link_bandwidth;  // NVLink or xGMI, bytes/s per GPU in one direction
  double pcie_bandwidth = 0;  // bytes/s in one direction
  std::optional<double> tdp_watts;
  std::optional<int> multiprocessors;
};

struct ClusterSpec {
  std::optional<Gpu> gpu;
  std::optional<Bytes> memory;  // --gpu-memory: replaces the card's CUDA total
  Bytes reserve;  // kept free
  std::optional<Bytes> host_memory;  // of a node, for what its ranks keep there
  std::optional<double> intra_node_bandwidth;  // bytes/s per GPU, one direction
  std::optional<double> inter_node_bandwidth;
  std::vector<Calibration> calibrations;  // of this GPU, one for each stack that was measured
};

}  // namespace plimsoll::models
