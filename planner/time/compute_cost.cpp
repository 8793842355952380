#include "planner/time/compute_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "planner/stacks/stack_info.h"
#include "planner/time/host_time.h"

namespace plimsoll::planner {

using models::Precision;

namespace {

double width(DType dtype) {
  return static_cast<double>(bits(dtype)) / 8;
}

// A GEMM covers its output in tiles, the largest of 256 x 128 elements, a wave of them at a time
// (NVIDIA, "Matrix Multiplication Background User's Guide", sections 3.2 and 3.3). The smaller ones
// for thin outputs end at 16 elements, an instruction's side. Without tensor cores: 128 x 128
// (cuBLAS's sgemm_128x128).
constexpr double kTileLong = 256, kTileShort = 128, kTileLeast = 16;

// One launch.
Cost one(const GpuRates& gpu, const Gemm& g) {
  const double rate = gpu.gemms[rate_index(g.dtype)] * (g.unaligned ? gpu.unaligned : 1);
  const double longest = g.dtype == DType::fp32 ? kTileShort : kTileLong;
  const double tile = std::clamp(std::max(g.m, g.n), kTileLeast, longest) *
                      std::clamp(std::min(g.m, g.n), kTileLeast, kTileShort);
  // The last wave is on average half full.
  const double compute = 2 * (g.count * g.m * g.n + tile * gpu.multiprocessors / 2) * g.k / rate;
  const double memory = width(g.dtype) * g.count * (g.m * g.k + g.k * g.n + g.m * g.n) / gpu.memory;
  return compute >= memory ? Cost{compute, 0, 0} : Cost{0, memory, 0};
}

// liger_kernel 0.8.5, ops/fused_linear_cross_entropy.py: the power of two from tokens over what the
// vocabulary is wider than the hidden states (Gemm::rows).
double rows_of(const Gemm& g, double tokens) {
  if (g.cut == Gemm::Cut::rows) return g.rows;
  const auto rows = static_cast<std::uint64_t>(std::ceil(tokens / g.rows));
  return static_cast<double>(std::bit_ceil(std::max<std::uint64_t>(1, rows)));
}

}  // namespace

Cost cost_of(const GpuRates& gpu, const Gemm& gemm) {
  if (gemm.cut == Gemm::Cut::none) return one(gpu, gemm);
  Gemm piece = gemm;
  double& tokens = gemm.tokens_summed ? piece.k : piece.m;
  const double pieces = std::max(1.0, tokens / rows_of(gemm, tokens));
  tokens /= pieces;
  Cost cost = pieces * one(gpu, piece);
  if (gemm.tokens_summed)
    cost.memory += (pieces - 1) * 2 * width(gemm.dtype) * gemm.m * gemm.n / gpu.memory;
  return cost;
}

Cost cost_of(const GpuRates& gpu, const Execution& e, const FusedAttention& attention) {
  const AttentionRates& rates = gpu.of(e.attention);
  const auto& rate = attention.backward ? rates.backward : rates.forward;
  return {attention.flops / rate[rate_index(attention.dtype)], 0, 0};
}

Cost cost_of_rest(const GpuRates& gpu, const Execution& e, const WorkSum& sum) {
  if (e.compiled) return {0, sum.compiled / gpu.memory, sum.compiled_kernels * e.launch};
  const double bytes = (e.fused ? sum.fused : sum.moved) + sum.casts;
  return {0, bytes / gpu.memory, (e.fused ? sum.fused_kernels : sum.kernels) * e.launch};
}

Execution execution_of(const models::Strategy& s) {
  Execution e;
  const StackInfo& stack = stack_info(s.stack);
  const bool fp16 = s.precision == Precision::fp16_mixed || s.precision == Precision::fp16;
  e.compute = s.precision == Precision::fp32 ? DType::fp32 : fp16 ? DType::fp16 : DType::bf16;
  e.fused = stack.own_kernels ||
            s.compile != models::Compile::no;  // other stacks' ops say what is one kernel
  e.compiled = s.compile != models::Compile::no;
  e.attention = s.attention;
  e.launch = launch_seconds(s).value;
  return e;
}

Cost optimizer_cost(const GpuRates& gpu, const Execution& e, const WorkSum& sum) {
  Cost cost{0, (sum.moved + sum.casts) / gpu.memory, sum.kernels * e.launch};
  for (Gemm gemm : sum.gemms) {
    if (gpu.gemms[rate_index(gemm.dtype)] <= 0) gemm.dtype = DType::fp32;  // emulated
    cost += cost_of(gpu, gemm);
  }
  return cost;
}

}  // namespace plimsoll::planner
