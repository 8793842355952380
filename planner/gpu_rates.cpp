#include "planner/gpu_rates.h"

#include <cmath>

namespace plimsoll::planner {

namespace {

// Bekman, "ML Engineering", compute/accelerator, "Maximum Achievable Matmul FLOPS comparison
// table" (bf16, torch 2.5 to 2.7): the best of many shapes, measured.
constexpr const char* kMatmul = "stas00/ml-engineering, maximum achievable matmul FLOPS, bf16";
// Rows marked in-sample in reports/accuracy.md.
constexpr const char* kFit = "reports/accuracy.md, rows in sample";
constexpr const char* kFlash2 = "FlashAttention-2, arXiv 2307.08691, section 4.1";
constexpr const char* kFlash3 = "FlashAttention-3, arXiv 2407.08608, section 4.1: cuDNN 9";

Share matmul_share(const models::Gpu& gpu) {
  if (gpu.name.starts_with("gh200")) return {0.836, "published", kMatmul};
  if (gpu.family == "hopper") return {0.803, "published", kMatmul};
  if (gpu.name.starts_with("a100-pcie")) return {0.811, "published", kMatmul};
  if (gpu.name.starts_with("a100")) return {0.869, "published", kMatmul};
  if (gpu.name == "mi325x") return {0.604, "published", kMatmul};
  if (gpu.family == "cdna3") return {0.514, "published", kMatmul};
  if (gpu.family == "cdna2") return {0.767, "published", kMatmul};
  if (gpu.vendor == "amd") return {0.514, "assumed", "as MI300X"};
  if (gpu.family == "blackwell") return {0.803, "assumed", "as H100"};
  return {0.869, "assumed", "as A100"};
}

Share kept_share(const models::Gpu& gpu) {
  if (gpu.family == "hopper") return {0.72, "calibrated", kFit};
  if (gpu.name.starts_with("a100")) return {0.86, "calibrated", kFit};
  if (gpu.family == "blackwell") return {0.72, "assumed", "as Hopper"};
  return {0.86, "assumed", "as A100"};
}

Share fp32_share(const models::Gpu& gpu) {
  if (gpu.name.starts_with("a100")) return {0.93, "calibrated", kFit};
  return {0.93, "assumed", "as A100"};
}

}  // namespace

FamilyShares family_shares(const models::Gpu& gpu, const Software& software) {
  FamilyShares shares{matmul_share(gpu), kept_share(gpu), fp32_share(gpu), {}, {}};
  const bool newer = gpu.family == "hopper" || gpu.family == "blackwell";
  if (software.first_attention) {
    shares.attention_forward =
        newer ? Share{0.26, "calibrated", kFit} : Share{0.44, "calibrated", kFit};
    shares.attention_backward =
        newer ? Share{0.165, "calibrated", kFit} : Share{0.29, "calibrated", kFit};
  } else if (newer) {
    const bool hopper = gpu.family == "hopper";
    const char* basis = hopper ? "published" : "assumed";
    shares.attention_forward = {0.60, basis, hopper ? kFlash3 : "as Hopper"};
    // In FlashAttention-2's proportion of backward to forward: 63 to 73.
    shares.attention_backward = {0.60 * 63 / 73, "assumed", "forward's, as on A100"};
  } else {
    const bool a100 = gpu.name.starts_with("a100");
    const char* basis = a100 ? "published" : "assumed";
    shares.attention_forward = {0.73, basis, a100 ? kFlash2 : "as A100"};
    shares.attention_backward = {0.63, basis, a100 ? kFlash2 : "as A100"};
  }
  return shares;
}

Share memory_share() {
  return {0.9, "published", "calculon, arXiv 2310.01966, systems/a100_80g.json: 100 MB and more"};
}

Share communication_use() {
  return {0.15, "published",
          "calculon, arXiv 2310.01966, systems/a100_80g.json: processor_usage of NVLink"};
}

// Differences of 5 % within nodes of 8 are reported; the range of 8 normal values is 2.85 standard
// deviations (Tippett, Biometrika 17, 1925).
Share speed_spread() {
  return {0.05 / 2.85, "calibrated",
          "stas00/ml-engineering, compute/accelerator: 5 % between the GPUs of a node of 8"};
}

// Blom's normal score of the largest value, by Abramowitz and Stegun 26.2.23 (error below 5e-4).
double slowest_of(double ranks) {
  if (ranks <= 1) return 0;
  const double t = std::sqrt(-2 * std::log(0.625 / (ranks + 0.25)));
  return t - (2.515517 + t * (0.802853 + t * 0.010328)) /
                 (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
}

GpuRates gpu_rates(const models::Gpu& gpu, const Software& software) {
  const FamilyShares shares = family_shares(gpu, software);
  GpuRates rates;
  rates.peaks = {gpu.fp32_flops.value_or(0), gpu.bf16_flops.value_or(0),
                 gpu.fp16_flops.value_or(0)};
  for (std::size_t i = 0; i < rates.peaks.size(); ++i) {
    const double share = i == 0 ? shares.fp32.value : shares.products.value * shares.kept.value;
    rates.products[i] = share * rates.peaks[i];
    rates.attention_forward[i] = shares.attention_forward.value * rates.peaks[i];
    rates.attention_backward[i] = shares.attention_backward.value * rates.peaks[i];
  }
  rates.memory = memory_share().value * gpu.memory_bandwidth;
  // Where the catalog has none: A100's.
  rates.multiprocessors = gpu.multiprocessors.value_or(108);
  return rates;
}

}  // namespace plimsoll::planner
