// cuDNN makes plans for a GPU that is described to it, so that a machine without one can ask
// whether it knows the graphs, and what they need. tests/kernels/no_driver stands in for the
// driver.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/cuda/cudnn_sdpa.h"

namespace plimsoll::kernels::test {

namespace {

using cuda::Descriptor;
using cuda::GraphPlan;
using cuda::SdpaShape;

// Of an H200: CUDA programming guide, compute capability 9.0, and NVIDIA's data sheet.
const char* const kH200 = R"({
  "deviceName": "NVIDIA H200", "cudaDeviceId": 0, "deviceVer": 900, "driverVer": 13000,
  "multiProcessorCount": 132, "totalGlobalMem": 150109880320, "l2CacheSize": 62914560,
  "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "warpSize": 32,
  "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
  "reservedSharedMemoryPerBlock": 1024, "regsPerBlock": 65536, "maxRegistersPerSM": 65536,
  "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048,
  "smClockRateKHz": 1980000, "memClockRateKHz": 3201000, "pciDeviceId": 0, "isTccDriver": 0,
  "supportCoopLaunch": 1})";

// q, k and v side by side in one tensor, their gradients too.
SdpaShape side_by_side(cudnnDataType_t dtype, std::int64_t sequences, std::int64_t heads,
                       std::int64_t kv_heads, std::int64_t length, std::int64_t d) {
  const std::int64_t stride = (heads + 2 * kv_heads) * d;
  return {.dtype = dtype,
          .sequences = sequences,
          .heads = heads,
          .kv_heads = kv_heads,
          .length = length,
          .head_dim = d,
          .q = stride,
          .k = stride,
          .v = stride,
          .out = heads * d,
          .d_out = heads * d,
          .d_q = stride,
          .d_k = stride,
          .d_v = stride};
}

}  // namespace

// Backward of grouped heads writes d_k and d_v of every query head before it adds them up: 2 bytes
// each of heads · length · d elements. cuDNN 9.19 asks for 256 bytes besides; others may for more.
TEST_CASE("cuDNN has a plan for the graphs of attention on an H200") {
  const Descriptor h200 = cuda::device_properties(std::string(kH200));
  for (SdpaShape s : {side_by_side(CUDNN_DATA_BFLOAT16, 2, 12, 12, 1024, 64),
                      side_by_side(CUDNN_DATA_BFLOAT16, 1, 32, 8, 4096, 128),
                      side_by_side(CUDNN_DATA_HALF, 3, 4, 1, 77, 80)}) {
    CAPTURE(s.head_dim);
    const GraphPlan backward(sdpa_backward(s), h200);
    CHECK(backward.refusal() == "");
    const std::int64_t full =
        s.heads == s.kv_heads ? 0 : 2 * 2 * s.sequences * s.heads * s.length * s.head_dim;
    CHECK(backward.workspace_bytes() >= full);
    CHECK(backward.workspace_bytes() <= full + (1 << 20));
    s.d_out = s.d_q = s.d_k = s.d_v = 0;
    const GraphPlan forward(sdpa_forward(s), h200);
    CHECK(forward.refusal() == "");
    CHECK(forward.workspace_bytes() <= 1 << 20);
  }
}

// tests/golden/kernels/cudnn_workspaces.json: what plans for an H200 ask for, in bytes, by the
// version that it names. PLIMSOLL_CUDNN_WORKSPACES=1 prints the file as it is with this version.
// Held against what models/decisions/workspace.h puts into a plan: for each query of each query
// head one value in fp32 and dQ, and where heads are grouped dK and dV, besides 768 B for all.
TEST_CASE("the plan's workspace holds what cuDNN asks for, whatever the shape") {
  const Descriptor h200 = cuda::device_properties(std::string(kH200));
  std::ifstream file(PLIMSOLL_GOLDEN "/kernels/cudnn_workspaces.json");
  nlohmann::json golden = nlohmann::json::parse(file);
  const bool same = golden["cudnn"] == cudnnGetVersion();
  REQUIRE(golden["plans"].size() >= 12);
  for (nlohmann::json& c : golden["plans"]) {
    CAPTURE(c.dump());
    const auto of = [&](const char* name) { return c[name].get<std::int64_t>(); };
    SdpaShape s =
        side_by_side(c["dtype"] == "bf16" ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF, of("sequences"),
                     of("heads"), of("kv_heads"), of("length"), of("head_dim"));
    const GraphPlan backward(sdpa_backward(s), h200);
    const std::int64_t rows = s.sequences * s.heads * s.length;
    const std::int64_t columns = 1 + s.head_dim * (s.heads == s.kv_heads ? 1 : 2);
    CHECK(backward.refusal() == "");
    CHECK(scratch_of(s, backward.workspace_bytes()).bytes <= 4 * rows * columns + 768);
    s.d_out = s.d_q = s.d_k = s.d_v = 0;
    const GraphPlan forward(sdpa_forward(s), h200);
    CHECK(forward.refusal() == "");
    if (same) CHECK(backward.workspace_bytes() == of("backward_bytes"));
    if (same) CHECK(forward.workspace_bytes() == of("forward_bytes"));
    c["backward_bytes"] = backward.workspace_bytes();
    c["forward_bytes"] = forward.workspace_bytes();
  }
  golden["cudnn"] = cudnnGetVersion();
  if (std::getenv("PLIMSOLL_CUDNN_WORKSPACES") == nullptr) return;
  std::string text = golden.dump();
  for (std::size_t at = 0; (at = text.find(",{", at)) != std::string::npos; ++at)
    text.insert(at + 1, "\n");
  std::puts(text.c_str());
}

TEST_CASE("some key heads of one sequence have a plan too") {
  const Descriptor h200 = cuda::device_properties(std::string(kH200));
  SdpaShape s = side_by_side(CUDNN_DATA_BFLOAT16, 1, 32, 8, 512, 128);
  s.heads = 12, s.kv_heads = 3;
  CHECK(GraphPlan(sdpa_backward(s), h200).refusal() == "");
}

TEST_CASE("a head size that cuDNN does not take is refused, not an error") {
  const Descriptor h200 = cuda::device_properties(std::string(kH200));
  const SdpaShape s = side_by_side(CUDNN_DATA_BFLOAT16, 1, 4, 4, 100, 36);
  CHECK(GraphPlan(sdpa_backward(s), h200).refusal() == "cuDNN has no plan for the graph");
}

// 2 · 3 sequences · heads: 4 · 6 · 10 = 240 bytes of rows, rounded to 256; 4 · 6 · 10 · 8 = 1920
// bytes of sums, rounded to 2048.
TEST_CASE("the parts of backward's scratch follow one another at multiples of 256") {
  const SdpaShape s = side_by_side(CUDNN_DATA_BFLOAT16, 2, 3, 3, 10, 8);
  const cuda::SdpaScratch at = cuda::scratch_of(s, 100);
  CHECK(at.row_sums == 0);
  CHECK(at.d_q_sum == 256);
  CHECK(at.workspace == 256 + 2048);
  CHECK(at.bytes == 256 + 2048 + 100);
}

// A scratch of exactly what a part needs takes that part; one byte less, the next smaller one.
TEST_CASE("what does not fit goes in the fewest equal parts: sequences first, then key heads") {
  const SdpaShape whole = side_by_side(CUDNN_DATA_BFLOAT16, 6, 12, 6, 64, 64);
  const auto workspace = [](const SdpaShape& s) {
    return std::optional(s.sequences * s.heads * s.length * s.head_dim);
  };
  const auto needs = [&](std::int64_t sequences, std::int64_t kv_heads) {
    SdpaShape s = whole;
    s.sequences = sequences, s.kv_heads = kv_heads, s.heads = 2 * kv_heads;
    return scratch_of(s, *workspace(s)).bytes;
  };
  const auto part = [&](std::int64_t bytes) { return fitting_part(whole, bytes, workspace); };
  for (const auto& [sequences, kv_heads] :
       {std::pair{6, 6}, {3, 6}, {2, 6}, {1, 6}, {1, 3}, {1, 2}, {1, 1}}) {
    const auto found = part(needs(sequences, kv_heads));
    REQUIRE(found);
    CHECK(found->sequences == sequences);
    CHECK(found->kv_heads == kv_heads);
    CHECK(found->heads == 2 * kv_heads);
  }
  CHECK(!part(needs(1, 1) - 1));
  CHECK(!fitting_part(whole, 1 << 30, [](const SdpaShape&) { return std::nullopt; }));
}

}  // namespace plimsoll::kernels::test
