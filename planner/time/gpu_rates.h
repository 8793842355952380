// What a GPU sustains of its peaks: the figures behind every estimate of time, with their sources.
#pragma once

#include <array>

#include "models/base/dtype.h"
#include "models/cluster_spec.h"
#include "models/run_names.h"
#include "models/run_spec.h"

namespace plimsoll::planner {

// A share of a peak and where it is from; basis: published, calibrated or assumed.
struct Share {
  double value = 0;
  const char* basis = "assumed";
  const char* source = "";
};

// Shares of one family of GPUs.
struct FamilyShares {
  Share gemms;  // what the best shape of a GEMM reaches of the peak
  Share kept;  // of that, what GEMMs keep within a step
  Share fp32;  // fp32 GEMMs, of their peak: no tensor cores, no limit of power
  Share attention_forward, attention_backward;  // of the peak, long sequences
  Share memory;  // of the bandwidth, what kernels that stream large tensors reach
  // What 16-bit products keep of their rate where rows of an operand are not whole 16 bytes, as
  // with GPT-2's vocabulary of 50,257: no tensor memory access, kernels of an older generation.
  Share unaligned;
};
// Whose kernels: PyTorch's (and its libraries'), or our own runtime's.
enum class Kernels : std::uint8_t { torch, own };
// `attention`: whose fused kernels; eager and math have none and get PyTorch's.
FamilyShares family_shares(const models::Gpu& gpu, models::Attention attention,
                           Kernels kernels = Kernels::torch);

// FLOP/s of fused attention, by rate_index.
struct AttentionRates {
  std::array<double, 3> forward{}, backward{};
};

// By models::Attention: PyTorch's own, its first generation, the packages'.
using RatesOfAttention = std::array<AttentionRates, models::kNamesOf<models::Attention>.size()>;

struct GpuRates {
  // FLOP/s in fp32 (PyTorch's default: no TF32), bf16, fp16, fp8; 0: the GPU has no such units.
  std::array<double, 4> peaks{}, gemms{};
  RatesOfAttention attention{};
  const AttentionRates& of(models::Attention kind) const {
    return attention[static_cast<std::size_t>(kind)];
  }
  double memory = 0;  // bytes/s of streaming kernels
  double unaligned = 1;  // FamilyShares::unaligned
  double multiprocessors = 1;
};
GpuRates gpu_rates(const models::Gpu& gpu, Kernels kernels = Kernels::torch);

// Of the memory's bandwidth, what PyTorch's kernels that stream large tensors reach.
Share memory_share();

// Of the GPU's compute, what a running collective takes from the work beside it.
Share communication_use();

// Bytes a second at which an allocator that gives cached segments back gets others instead:
// cudaFree waits for the device, and both calls work page by page.
Share flush_rate();

// Standard deviation of the speed of GPUs of one kind, of the mean. A step ends with the slowest.
Share speed_spread();
// By how much the slowest of `ranks` GPUs is expected to lie below the mean, in such deviations.
double slowest_of(double ranks);

// Share of the nodes that are slow for a while, and by how much of the time they need more. The
// first node's is in what was fitted on one node.
Share slow_nodes();
Share slowdown_of_slow_node();
// Time that all GPUs wait for the slowest, as a share of what they compute.
double waiting(double gpus, double nodes);

constexpr std::size_t rate_index(DType dtype) {
  return dtype == DType::fp32 ? 0 : dtype == DType::bf16 ? 1 : dtype == DType::fp8_e4m3 ? 3 : 2;
}

}  // namespace plimsoll::planner
