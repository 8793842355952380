// What GPUs were published to sustain, and which figure stands for a card that nobody measured.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "models/gpu_catalog.h"
#include "planner/time/compute_cost.h"
#include "tests/near.h"

using namespace plimsoll;
using models::Attention;
using planner::FamilyShares;
using planner::Share;

namespace {

FamilyShares shares(const char* gpu, Attention attention = Attention::flash) {
  return planner::family_shares(models::find_gpu(gpu), attention);
}

std::string said(const Share& share) {
  return std::string(share.basis) + ", " + share.source;
}

// The best of its GEMMs in 16 bits, TFLOP/s.
double best_gemm(const char* name) {
  const models::Gpu gpu = models::find_gpu(name);
  const planner::GpuRates rates = planner::gpu_rates(gpu);
  const double peak = gpu.bf16_flops ? rates.peaks[1] : rates.peaks[2];
  return shares(name).gemms.value * peak / 1e12;
}

}  // namespace

// zzc0721/torch-performance-test-data @9d82827, database.md: the median of a card's entries that
// are not overclocked, bf16 (fp16 on Volta and Turing); 3090 Ti: mli/transformers-benchmarks.
TEST_CASE("GEMMs are as fast as users measured them on their own cards") {
  struct Row {
    const char* gpu;
    double tflops;
  };
  for (const Row& row : {Row{"v100-sxm-16gb", 94.84},
                         {"t4", 41.93},
                         {"rtx-2080-ti", 58.58},
                         {"rtx-a6000", 123.34},
                         {"rtx-3080-10gb", 64.68},
                         {"rtx-3090", 76.58},
                         {"rtx-3090-ti", 81},
                         {"l4", 70.89},
                         {"l40s", 269.15},
                         {"rtx-4060-ti-16gb", 42.65},
                         {"rtx-4070-ti-super", (89.36 + 92.74) / 2},
                         {"rtx-4090", 164.81},
                         {"h100-pcie-80gb", 495.93},
                         {"h20-sxm-96gb", (141.86 + 142.25) / 2},
                         {"rtx-5070-ti", 99.06},
                         {"rtx-5080", 102.89},
                         {"rtx-5090", 238.04},
                         {"rtx-pro-6000-blackwell", 417.98},
                         {"rtx-pro-6000-blackwell-server", 409.42}}) {
    CAPTURE(row.gpu);
    CHECK(tests::near(best_gemm(row.gpu), row.tflops, 1e-3));
    CHECK(std::string(shares(row.gpu).gemms.basis) == "published");
  }
}

// stas00/ml-engineering, compute/accelerator, "Maximum Achievable Matmul FLOPS comparison table":
// TFLOP/s in bf16. Its peaks are rounded: 989 of 989.4, 1300 of 1307.4.
TEST_CASE("GEMMs of servers' GPUs reach what mamf-finder found") {
  struct Row {
    const char* gpu;
    double tflops;
  };
  for (const Row& row : {Row{"a100-sxm-80gb", 271.2},
                         {"a100-sxm-40gb", 271.2},
                         {"a100-pcie-80gb", 252.9},
                         {"gh200-96gb", 828.6},
                         {"h100-sxm-80gb", 794.5},
                         {"h200-sxm-141gb", 794.5},
                         {"h100-nvl-94gb", 794.5 / 989.4 * 835.5},
                         {"b200-sxm-180gb", 1745},
                         {"b300-sxm-288gb", 1769},
                         {"gb200-186gb", 1822},
                         {"mi355x", 1565},
                         {"mi325x", 784.9},
                         {"mi300x", 668.4},
                         {"mi250x", 147.0}}) {
    CAPTURE(row.gpu);
    CHECK(tests::near(best_gemm(row.gpu), row.tflops, 7e-3));
    CHECK(std::string(shares(row.gpu).gemms.basis) == "published");
  }
}

TEST_CASE("a card that nobody measured takes the share of the nearest that was, and says so") {
  struct Row {
    const char *gpu, *as, *said;
  };
  for (const Row& row : {Row{"v100-pcie-16gb", "v100-sxm-16gb", "assumed, as V100 SXM2"},
                         {"l40", "l40s", "assumed, as L40S"},
                         {"rtx-6000-ada", "l40s", "assumed, as L40S"},
                         {"a10", "rtx-a6000", "assumed, as RTX A6000"},
                         {"a40", "rtx-a6000", "assumed, as RTX A6000"},
                         {"rtx-3060-12gb", "rtx-4090", "assumed, as RTX 4090"},
                         {"rtx-4080", "rtx-4090", "assumed, as RTX 4090"},
                         {"a30", "a100-sxm-80gb", "assumed, as A100"},
                         {"a800-sxm-80gb", "a100-sxm-80gb", "assumed, as A100"},
                         {"gb300-288gb", "gb200-186gb", "assumed, as GB200"},
                         {"mi350x", "mi300x", "assumed, as MI300X"}}) {
    CAPTURE(row.gpu);
    const Share found = shares(row.gpu).gemms;
    CHECK(said(found) == row.said);
    CHECK(tests::near(found.value, shares(row.as).gemms.value, 1e-2));
  }
}

// What a step keeps of that was fitted on two families and one card; the rest is as one of them.
TEST_CASE("power and memory hold GEMMs of a step back, most on the fastest GPUs") {
  CHECK(shares("h100-sxm-80gb").kept.value == shares("b200-sxm-180gb").kept.value);
  CHECK(shares("a100-pcie-40gb").kept.value == shares("l40s").kept.value);
  CHECK(shares("rtx-4090").kept.value == shares("rtx-3090").kept.value);
  CHECK(shares("rtx-4090").kept.value == shares("rtx-5090").kept.value);
  CHECK(shares("h100-sxm-80gb").kept.value < shares("a100-sxm-80gb").kept.value);
  CHECK(shares("a100-sxm-80gb").kept.value < shares("rtx-4090").kept.value);
  for (const char* fitted : {"h200-sxm-141gb", "a100-sxm-40gb", "rtx-4090"})
    CHECK(std::string(shares(fitted).kept.basis) == "calibrated");
  for (const char* like : {"b200-sxm-180gb", "rtx-3090", "rtx-2080-ti", "l40s", "mi300x"})
    CHECK(std::string(shares(like).kept.basis) == "assumed");
}

// The same users' entries in fp32, of the catalog's peak: 14.06 of 15.7, 4.35 of 8.1, 54.67 of
// 82.6, 24.79 of 35.6, 23.92 of 38.7, 46.88 of 91.6.
TEST_CASE("fp32 GEMMs reach what users measured") {
  CHECK(tests::near(shares("v100-sxm-16gb").fp32.value, 14.06 / 15.7, 0.01));
  CHECK(tests::near(shares("t4").fp32.value, 4.35 / 8.1, 0.01));
  CHECK(tests::near(shares("rtx-4090").fp32.value, 54.67 / 82.6, 0.01));
  CHECK(tests::near(shares("rtx-3090").fp32.value, 24.79 / 35.6, 0.06));
  CHECK(tests::near(shares("rtx-5090").fp32.value, 68.37 / 104.8, 0.02));
  CHECK(tests::near(shares("rtx-a6000").fp32.value, 23.92 / 38.7, 0.01));
  CHECK(tests::near(shares("l40s").fp32.value, 46.88 / 91.6, 0.01));
  CHECK(said(shares("h100-sxm-80gb").fp32) == "assumed, as A100");
}

// FlashAttention-2 on A100: 73 and 63 % of the peak (arXiv 2307.08691, 4.1). cuDNN 9.19 on H100,
// 8192 tokens: 617 and 507 TFLOP/s of 989.4 (device-overheads.json); 60 % in arXiv 2407.08608, 4.1.
TEST_CASE("fused attention reaches what was seen of it, elsewhere in proportion to GEMMs") {
  const FamilyShares a100 = shares("a100-sxm-80gb"), h100 = shares("h100-sxm-80gb");
  CHECK(a100.attention_forward.value == 0.73);
  CHECK(a100.attention_backward.value == 0.63);
  CHECK(tests::near(h100.attention_forward.value, 617 / 989.4, 0.01));
  CHECK(tests::near(h100.attention_backward.value, 507 / 989.4, 0.01));
  CHECK(std::string(h100.attention_forward.basis) == "calibrated");
  CHECK(said(shares("b200-sxm-180gb").attention_forward) == "assumed, as H100");
  CHECK(shares("b200-sxm-180gb").attention_forward.value == 0.62);
  // 0.797 of 0.869: RTX A6000's GEMMs beside A100's.
  CHECK(tests::near(shares("rtx-a6000").attention_forward.value, 0.73 * 0.7968 / 0.869, 1e-3));
  CHECK(tests::near(shares("rtx-a6000").attention_backward.value, 0.63 * 0.7968 / 0.869, 1e-3));
  CHECK(said(shares("mi300x").attention_forward) == "assumed, as A100");
  CHECK(shares("mi300x").attention_forward.value == 0.73);
  CHECK(shares("a30").attention_backward.value == 0.63);
  // The first generation is slower everywhere, and slowest of the peak on Hopper.
  for (const char* gpu : {"a100-sxm-80gb", "h100-sxm-80gb", "rtx-4090"}) {
    const FamilyShares first = shares(gpu, Attention::flash_1), second = shares(gpu);
    CAPTURE(gpu);
    CHECK(first.attention_forward.value < second.attention_forward.value);
    CHECK(first.attention_backward.value < first.attention_forward.value);
  }
  CHECK(shares("h100-sxm-80gb", Attention::flash_1).attention_forward.value <
        shares("a100-sxm-80gb", Attention::flash_1).attention_forward.value);
  // The packages', which are cuDNN's nowhere: figures 5 and 6 of FlashAttention-3's paper.
  const FamilyShares second = shares("h200", Attention::flash_2);
  CHECK(tests::near(second.attention_forward.value, 0.3741, 1e-3));
  CHECK(tests::near(second.attention_backward.value, 0.3256, 1e-3));
  const FamilyShares third = shares("h100-sxm-80gb", Attention::flash_3);
  CHECK(tests::near(third.attention_forward.value, 0.6552, 1e-3));
  CHECK(tests::near(third.attention_backward.value, 0.5672, 1e-3));
  CHECK(std::string(third.attention_forward.basis) == "published");
  CHECK(shares("b200-sxm-180gb", Attention::flash_2).attention_forward.value == 0.62);
  CHECK(shares("a100-sxm-80gb", Attention::flash_2).attention_forward.value == 0.73);
}

// speed-llama-3.1-8b.json: forward 70.4e12 FLOP in 0.1649 s, backward 176.0e12 in 0.5270 s; the
// best product of rates-ceilings.json has 768.4 TFLOP/s. Of GPT-2's head 1.265e12 FLOP took 12.1
// and 9.3 ms (first-speed-gpt2.json): 120 TFLOP/s in the middle, of 0.803 · 0.72 · 989.4.
TEST_CASE("our own kernels have the rates that were measured on an H100, others PyTorch's") {
  const models::Gpu gpu = models::find_gpu("h100-sxm-80gb");
  const planner::GpuRates own = planner::gpu_rates(gpu, planner::Kernels::own);
  CHECK(tests::near(own.gemms[1], 0.98 * 768.4e12, 0.01));
  CHECK(tests::near(own.of(Attention::flash).forward[1], 70.4e12 / 0.1649, 0.01));
  CHECK(tests::near(own.of(Attention::flash).backward[1], 176.0e12 / 0.5270, 0.01));
  CHECK(own.unaligned == 1);  // its operands are padded
  const planner::GpuRates torch = planner::gpu_rates(gpu);
  CHECK(tests::near(torch.unaligned * torch.gemms[1], 120e12, 0.01));
  CHECK(planner::gpu_rates(models::find_gpu("a100-sxm-80gb")).unaligned == 1);
  const models::Gpu a100 = models::find_gpu("a100-sxm-80gb");
  CHECK(planner::gpu_rates(a100, planner::Kernels::own).gemms == planner::gpu_rates(a100).gemms);
  CHECK(said(planner::family_shares(models::find_gpu("h200-sxm-141gb"), Attention::flash,
                                    planner::Kernels::own)
                 .memory) == "assumed, as H100");
}

TEST_CASE("rates are by dtype; of a unit that is not there they are nothing") {
  const planner::GpuRates volta = planner::gpu_rates(models::find_gpu("v100-sxm-16gb"));
  CHECK(volta.peaks[1] == 0);
  CHECK(volta.gemms[1] == 0);
  CHECK(volta.peaks[2] == 125e12);
  const planner::GpuRates h100 = planner::gpu_rates(models::find_gpu("h100-sxm-80gb"));
  CHECK(tests::near(h100.gemms[0], 0.93 * 66.9e12, 1e-12));  // no share of power
  CHECK(tests::near(h100.gemms[1], 0.803 * 0.72 * 989.4e12, 1e-12));
  CHECK(h100.gemms[2] == h100.gemms[1]);
  CHECK(tests::near(h100.of(Attention::flash).forward[1], 0.62 * 989.4e12, 1e-12));
  CHECK(tests::near(h100.of(Attention::flash).backward[2], 0.51 * 989.4e12, 1e-12));
  CHECK(tests::near(h100.of(Attention::flash_3).forward[1], 648e12 * 989.4 / 989, 1e-9));
  CHECK(tests::near(h100.of(Attention::flash_2).backward[1], 322e12 * 989.4 / 989, 1e-9));
  CHECK(h100.of(Attention::flash_1).forward[1] < h100.of(Attention::flash).forward[1]);
  CHECK(h100.multiprocessors == 132);
}

// 20 ms more where the GPUs of a step are waited for, of which 8 differ by 5 % at the most: the
// range of 8 normal values is 2.85 deviations.
TEST_CASE("GPUs wait for the slowest: 1.42 deviations among 8, and slow nodes beside the first") {
  CHECK(planner::waiting(1, 1) == 0);
  CHECK(tests::near(planner::waiting(8, 1), 1.4236 * 0.05 / 2.85, 0.01));
  // A tenth more where one of the 15 other nodes is slow: 1 - 0.9902^15 = 0.1373.
  CHECK(tests::near(planner::waiting(128, 16) - planner::waiting(128, 1), 0.1 * 0.1373, 0.01));
}

TEST_CASE("our own kernels are fused, and GEMMs are in the dtype of the precision") {
  models::Strategy s;
  s.stack = models::Stack::plimsoll;
  const planner::Execution own = planner::execution_of(s);
  CHECK(own.fused);
  CHECK_FALSE(own.compiled);
  CHECK(own.compute == DType::bf16);
  for (const models::Precision precision :
       {models::Precision::fp16_mixed, models::Precision::fp16}) {
    s.precision = precision;
    CHECK(planner::execution_of(s).compute == DType::fp16);
  }
  s.precision = models::Precision::fp32;
  CHECK(planner::execution_of(s).compute == DType::fp32);
}

// A100: 108 multiprocessors; 0.869 · 0.86 of 312 TFLOP/s; 0.93 of 19.5 in fp32.
TEST_CASE("a GEMM waits for half a wave of tiles, and thin ones have thin tiles") {
  const planner::GpuRates a100 = planner::gpu_rates(models::find_gpu("a100-sxm-80gb"));
  const double rate = 0.869 * 0.86 * 312e12, slow = 0.93 * 19.5e12;
  const auto seconds = [&](DType dtype, double m, double n, double k) {
    return planner::cost_of(a100, planner::Gemm{dtype, m, n, k});
  };
  // Tiles of 256 x 128, of fp32 128 x 128: 2 (m n + tile · 54) k FLOPs.
  CHECK(tests::near(seconds(DType::bf16, 4096, 4096, 4096).gemm,
                    2 * (4096.0 * 4096 + 256 * 128 * 54) * 4096 / rate, 1e-12));
  CHECK(tests::near(seconds(DType::fp32, 4096, 4096, 4096).gemm,
                    2 * (4096.0 * 4096 + 128 * 128 * 54) * 4096 / slow, 1e-12));
  // 64 by 96: a tile of 96 x 64. Of fp32, so that memory does not decide.
  CHECK(tests::near(seconds(DType::fp32, 64, 96, 65536).gemm,
                    2 * (64.0 * 96 + 96 * 64 * 54) * 65536 / slow, 1e-12));
  // 8 by 4: an instruction's 16 x 16.
  CHECK(tests::near(seconds(DType::fp32, 8, 4, 1048576).gemm,
                    2 * (8.0 * 4 + 16 * 16 * 54) * 1048576 / slow, 1e-12));
  // One token: the weight is read, and little is multiplied.
  const planner::Cost thin = seconds(DType::bf16, 1, 4096, 4096);
  CHECK(thin.gemm == 0);
  CHECK(tests::near(thin.memory, 2 * (4096.0 + 4096.0 * 4096 + 4096) / a100.memory, 1e-12));
}
