#include "planner/time/gpu_rates.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace plimsoll::planner {

namespace {

// Bekman, "ML Engineering", compute/accelerator, "Maximum Achievable Matmul FLOPS comparison
// table" (bf16, torch 2.5 to 2.7): the best of many shapes, measured.
constexpr const char* kMatmul = "stas00/ml-engineering, maximum achievable matmul FLOPS, bf16";
// Rows marked in-sample in reports/accuracy.md.
constexpr const char* kFit = "reports/accuracy.md, rows in sample";
constexpr const char* kFlash3 = "FlashAttention-3, arXiv 2407.08608, section 4.1";
constexpr const char* kFlex =
    "pytorch.org/blog, PyTorch at GTC 2025 (FlexAttention), in proportion to FlashAttention-2 "
    "(arXiv 2407.08608, 4.1)";
constexpr const char* kFlash2 = "FlashAttention-2, arXiv 2307.08691, section 4.1";

// Attention: cuDNN's of 8192 tokens, 32 heads of 128 and 8 of keys. Our own kernels: the profile of
// one model; the steps of four others are judged. Unaligned: the two products of GPT-2's head with
// 50,257 columns (libraries): 104 and 136 TFLOP/s, before it was cut; PyTorch's steps are
// judged.
constexpr const char* kH100 = "reports/evidence/2026-11-26-h100-80gb-hbm3/device-overheads.json";
constexpr const char* kOwn8B = "reports/evidence/2026-11-26-h100-80gb-hbm3/speed-llama-3.1-8b.json";
constexpr const char* kCeilings = "reports/evidence/2026-11-26-h100-80gb-hbm3/rates-ceilings.json";
constexpr const char* kOwnGpt2 = "reports/evidence/2026-11-26-h100-80gb-hbm3/first-speed-gpt2.json";

// The best of square GEMMs of 1024 to 10240, bf16 (fp16 on Volta and Turing), as users measured
// their cards: the median of each card's entries. 3090 Ti: mli/transformers-benchmarks @3370b2b.
constexpr const char* kUsers = "zzc0721/torch-performance-test-data @9d82827, database.md";
struct Measured {
  std::string_view gpu;
  double rate, peak;  // TFLOP/s
};
constexpr Measured kMeasured[] = {{"v100-sxm-16gb", 94.84, 125},
                                  {"t4", 41.93, 65},
                                  {"rtx-2080-ti", 58.58, 53.8},
                                  {"rtx-a6000", 123.34, 154.8},
                                  {"rtx-3080-10gb", 64.68, 59.5},
                                  {"rtx-3090", 76.58, 71},
                                  {"rtx-3090-ti", 81, 80},
                                  {"l4", 70.89, 121},
                                  {"l40s", 269.15, 362.05},
                                  {"rtx-4060-ti-16gb", 42.65, 44.1},
                                  {"rtx-4070-ti-super", 91.05, 88.2},
                                  {"rtx-4090", 164.81, 165.2},
                                  {"h100-pcie-80gb", 495.93, 756},
                                  {"h20-sxm-96gb", 142.05, 148},
                                  {"rtx-5070-ti", 99.06, 87.9},
                                  {"rtx-5080", 102.89, 112.6},
                                  {"rtx-5090", 238.04, 209.5},
                                  {"rtx-pro-6000-blackwell", 417.98, 503.8},
                                  {"rtx-pro-6000-blackwell-server", 409.42, 480}};

Share measured_share(const Measured& m) {
  return {m.rate / m.peak, "published", kUsers};
}

// GeForce cards sum in fp32 at half the rate of their tensor cores (NVIDIA's white papers on GA102
// and Ada), and the catalog has that half: neither power nor memory holds GEMMs back.
bool is_geforce(const models::Gpu& gpu) {
  return gpu.name.starts_with("rtx-2") || gpu.name.starts_with("rtx-3") ||
         gpu.name.starts_with("rtx-4") || gpu.name.starts_with("rtx-5");
}

Share matmul_share(const models::Gpu& gpu) {
  for (const Measured& m : kMeasured)
    if (gpu.name == m.gpu) return measured_share(m);
  if (gpu.name.starts_with("gh200")) return {0.836, "published", kMatmul};
  if (gpu.family == "hopper") return {0.803, "published", kMatmul};
  if (gpu.name.starts_with("a100-pcie")) return {0.811, "published", kMatmul};
  if (gpu.name.starts_with("a100")) return {0.869, "published", kMatmul};
  if (gpu.name.starts_with("gb200")) return {0.729, "published", kMatmul};
  if (gpu.name.starts_with("b200")) return {0.776, "published", kMatmul};
  if (gpu.name.starts_with("b300")) return {0.786, "published", kMatmul};
  if (gpu.name == "mi325x") return {0.604, "published", kMatmul};
  if (gpu.name == "mi355x") return {1565 / 2516.6, "published", kMatmul};
  if (gpu.family == "cdna3") return {0.514, "published", kMatmul};
  if (gpu.family == "cdna2") return {0.767, "published", kMatmul};
  if (gpu.vendor == "amd") return {0.514, "assumed", "as MI300X"};
  if (gpu.family == "blackwell") return {0.729, "assumed", "as GB200"};
  if (is_geforce(gpu)) return {1, "assumed", "as RTX 4090"};
  if (gpu.family == "volta") return {0.76, "assumed", "as V100 SXM2"};
  if (gpu.family == "ada") return {0.74, "assumed", "as L40S"};
  if (gpu.compute_capability == "8.6") return {0.80, "assumed", "as RTX A6000"};
  return {0.869, "assumed", "as A100"};
}

// Other cards of its generation take it over.
Share measured_on_h100(const models::Gpu& gpu, double value, const char* evidence) {
  if (gpu.name == "h100-sxm-80gb") return {value, "calibrated", evidence};
  return {value, "assumed", "as H100"};
}

Share kept_share(const models::Gpu& gpu) {
  if (gpu.family == "hopper") return {0.72, "calibrated", kFit};
  if (gpu.name.starts_with("a100")) return {0.86, "calibrated", kFit};
  if (gpu.family == "blackwell") return {0.72, "assumed", "as Hopper"};
  if (gpu.name == "rtx-4090") return {0.965, "calibrated", kFit};
  if (is_geforce(gpu)) return {0.965, "assumed", "as RTX 4090"};
  return {0.86, "assumed", "as A100"};
}

Share fp32_share(const models::Gpu& gpu) {
  if (gpu.name.starts_with("a100")) return {0.93, "calibrated", kFit};
  // TFLOP/s of the peak: 14.06 of 15.7; 4.35 of 8.1; 54.67 of 82.6, 24.79 of 35.6
  // and 67.6 of 104.8; 23.92 of 38.7; 46.88 of 91.6.
  if (gpu.family == "volta") return {0.90, "published", kUsers};
  if (gpu.name == "t4") return {0.54, "published", kUsers};
  if (is_geforce(gpu)) return {0.66, "published", kUsers};
  if (gpu.name == "rtx-a6000") return {0.62, "published", kUsers};
  if (gpu.family == "ada") return {0.51, "published", kUsers};
  return {0.93, "assumed", "as A100"};
}

// FlashAttention-2's on A100, and in proportion to GEMMs where those are known.
Share attention_share(const models::Gpu& gpu, double a100) {
  if (gpu.name.starts_with("a100")) return {a100, "published", kFlash2};
  const Share gemms = matmul_share(gpu);
  if (gpu.vendor != "nvidia" || gemms.source == std::string_view("as A100"))
    return {a100, "assumed", "as A100"};
  return {a100 * gemms.value / 0.869, "assumed", "as A100, in proportion to GEMMs"};
}

}  // namespace

FamilyShares family_shares(const models::Gpu& gpu, models::Attention attention, Kernels kernels) {
  FamilyShares shares{matmul_share(gpu),
                      kept_share(gpu),
                      fp32_share(gpu),
                      {},
                      {},
                      memory_share(),
                      Share{1, "assumed", "as fast as others"}};
  if (gpu.family == "hopper" && kernels == Kernels::own) {
    // The best product, 768 TFLOP/s. The layers' of Llama-3.1-8B come to 0.689 of the peak, which
    // is that less the last wave of tiles (compute_cost.cpp) and 2 %.
    shares.gemms = measured_on_h100(gpu, 0.777, kCeilings);
    shares.kept = measured_on_h100(gpu, 0.98, kOwn8B);
    shares.attention_forward = measured_on_h100(gpu, 0.431, kOwn8B);
    shares.attention_backward = measured_on_h100(gpu, 0.337, kOwn8B);
    shares.memory = measured_on_h100(gpu, 0.634, kOwn8B);
    return shares;
  }
  if (gpu.family == "hopper") shares.unaligned = measured_on_h100(gpu, 0.21, kOwnGpt2);
  const bool newer = gpu.family == "hopper" || gpu.family == "blackwell";
  if (attention == models::Attention::flash_1) {
    shares.attention_forward =
        newer ? Share{0.26, "calibrated", kFit} : Share{0.44, "calibrated", kFit};
    shares.attention_backward =
        newer ? Share{0.165, "calibrated", kFit} : Share{0.29, "calibrated", kFit};
  } else if (attention == models::Attention::efficient ||
             attention == models::Attention::xformers) {  // before Ampere the same kernel
    // device-overheads.json, sequence of 4096, 32 heads of 128: 149 of 989 TFLOP/s forward, 108
    // backward.
    shares.attention_forward = measured_on_h100(gpu, 0.15, kH100);
    shares.attention_backward = measured_on_h100(gpu, 0.11, kH100);
    if (!newer) {  // as FlashAttention of the first generation
      shares.attention_forward = {0.44, "assumed", kFit};
      shares.attention_backward = {0.29, "assumed", kFit};
    }
  } else if (attention == models::Attention::flex) {
    // Of FlashAttention-2's 0.90 and 0.85 on A100, 1.25 and 1.03 on H100, on average.
    shares.attention_forward = {
        newer ? 1.25 * 370 / 989.0 : 0.90 * attention_share(gpu, 0.73).value, "assumed", kFlex};
    shares.attention_backward = {
        newer ? 1.03 * 322 / 989.0 : 0.85 * attention_share(gpu, 0.63).value, "assumed", kFlex};
  } else if (gpu.family == "hopper" && models::is_flash_package(attention)) {
    // Figures 5 and 6, H100 SXM, heads of 128, 16k tokens, no mask: TFLOP/s of 989.
    const bool third = attention == models::Attention::flash_3;
    shares.attention_forward = {(third ? 648 : 370) / 989.0, "published", kFlash3};
    shares.attention_backward = {(third ? 561 : 322) / 989.0, "published", kFlash3};
  } else if (newer) {
    // FlashAttention-3, arXiv 2407.08608, section 4.1, has 0.60 of cuDNN 9's forward.
    shares.attention_forward = measured_on_h100(gpu, 0.62, kH100);
    shares.attention_backward = measured_on_h100(gpu, 0.51, kH100);
  } else {
    shares.attention_forward = attention_share(gpu, 0.73);
    shares.attention_backward = attention_share(gpu, 0.63);
    if (attention == models::Attention::cudnn)  // as FlashAttention's second
      shares.attention_forward.basis = shares.attention_backward.basis = "assumed";
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

// Llama-3-8B on two GPUs of 80 GB, which it does not fit: 51.4 GB allocated anew in each step,
// which takes 1.04 s more than the same on one GPU, where it fits, says of the other work. Of the
// same source, 8 sequences a step: 68.5 GB in 1.24 s.
Share flush_rate() {
  return {50e9, "calibrated", "reports/accuracy.md, row fms-liger-036"};
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

// Some nodes are slow for a while, as MegaScale (arXiv 2402.15627) reports of computational
// stragglers. By how much is assumed: its figure was not looked up again. How many is fitted:
// reports/accuracy.md, "Many GPUs".
Share slow_nodes() {
  return {0.0098, "calibrated", kFit};
}

Share slowdown_of_slow_node() {
  return {0.10, "assumed",
          "a tenth, not measured; that there are such nodes: MegaScale, arXiv 2402.15627"};
}

double waiting(double gpus, double nodes) {
  return speed_spread().value * slowest_of(gpus) +
         slowdown_of_slow_node().value *
             (1 - std::pow(1 - slow_nodes().value, std::max(0.0, nodes - 1)));
}

GpuRates gpu_rates(const models::Gpu& gpu, Kernels kernels) {
  const FamilyShares shares = family_shares(gpu, models::Attention::flash, kernels);
  GpuRates rates;
  rates.peaks = {gpu.fp32_flops.value_or(0), gpu.bf16_flops.value_or(0), gpu.fp16_flops.value_or(0),
                 gpu.fp8_flops.value_or(0)};
  // In fp8 of their own peak what they reach in 16 bits of that (assumed).
  for (std::size_t i = 0; i < rates.peaks.size(); ++i) {
    const double share = i == 0 ? shares.fp32.value : shares.gemms.value * shares.kept.value;
    rates.gemms[i] = share * rates.peaks[i];
  }
  for (std::size_t kind = 0; kind < rates.attention.size(); ++kind) {
    const FamilyShares of = family_shares(gpu, static_cast<models::Attention>(kind), kernels);
    AttentionRates& fused = rates.attention[kind];
    for (std::size_t i = 0; i < fused.forward.size(); ++i) {
      fused.forward[i] = of.attention_forward.value * rates.peaks[i];
      fused.backward[i] = of.attention_backward.value * rates.peaks[i];
    }
  }
  rates.memory = shares.memory.value * gpu.memory_bandwidth;
  rates.unaligned = shares.unaligned.value;
  // Where the catalog has none: A100's.
  rates.multiprocessors = gpu.multiprocessors.value_or(108);
  return rates;
}

}  // namespace plimsoll::planner
