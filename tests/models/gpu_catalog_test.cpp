#include "models/gpu_catalog.h"

#include <doctest/doctest.h>

#include <set>

#include "models/overheads.h"

using namespace plimsoll;
using models::Gpu;

TEST_CASE("common aliases name the card that people mean, in any case") {
  CHECK(models::find_gpu("h100").name == "h100-sxm-80gb");
  CHECK(models::find_gpu("H100-SXM-80GB").name == "h100-sxm-80gb");
  CHECK(models::find_gpu("4090").name == "rtx-4090");
  CHECK(models::find_gpu("a100-40gb").name == "a100-sxm-40gb");
}

TEST_CASE("every GPU is read, with a capacity below its box's figure and a source") {
  const std::vector<Gpu> gpus = models::all_gpus();
  CHECK(gpus.size() >= 35);
  std::set<std::string> names;
  for (const Gpu& gpu : gpus) {
    CAPTURE(gpu.name);
    CHECK(names.insert(gpu.name).second);
    CHECK(models::find_gpu(gpu.name).title == gpu.title);
    CHECK(gpu.cuda_total.bytes > Bytes(0));
    CHECK(gpu.cuda_total.bytes <= gpu.nominal);
    CHECK(!gpu.cuda_total.source.empty());
    CHECK(gpu.memory_bandwidth > 1e11);
    CHECK(gpu.fp16_flops.has_value());
  }
}

TEST_CASE("what the card lacks is absent and not zero") {
  const Gpu v100 = models::find_gpu("v100");
  CHECK(!v100.bf16_flops.has_value());
  CHECK(!v100.fp8_flops.has_value());
  CHECK(v100.fp16_flops == 125e12);  // NVIDIA's V100 data sheet, SXM2
  CHECK(v100.cuda_total.bytes == Bytes(34'089'926'656));
}

TEST_CASE("an unknown GPU is refused with the nearest name") {
  try {
    (void)models::find_gpu("h10O");
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    CHECK(error.message() == "GPU 'h10O' is not in the catalog; did you mean 'h100'?");
  }
}

TEST_CASE("overheads: the family's entry goes before the vendor's, and versions are kept apart") {
  const Gpu h100 = models::find_gpu("h100");
  const auto old = models::overheads_of("pytorch", h100, "2.11.0+cu130");
  const auto* workspace = models::find_overhead(old, "cublas_workspace");
  REQUIRE(workspace != nullptr);
  CHECK(workspace->range->typical == 32 << 20);  // CublasHandlePool.cpp: 32 MiB on sm_90
  CHECK(workspace->where == models::Overhead::Where::allocator);
  CHECK(workspace->source.size() > 20);  // its text, and not the key
  CHECK(models::find_overhead(old, "cublaslt_workspace")->range->typical == 1 << 20);
  const auto later = models::overheads_of("pytorch", h100, "2.12");
  CHECK(models::find_overhead(later, "cublaslt_workspace")->range->typical == 0);
  CHECK(models::find_overhead(old, "nothing") == nullptr);
  CHECK_THROWS_AS(models::overheads_of("pytorch", h100, "newest"), Error);
}

TEST_CASE("overheads: each stack has its own context, and one entry for each name") {
  const Gpu h100 = models::find_gpu("h100");
  const auto ours = models::overheads_of("plimsoll", h100, "2.11");
  const auto torch = models::overheads_of("pytorch", h100, "2.11");
  CHECK(models::find_overhead(ours, "context")->range->typical <
        models::find_overhead(torch, "context")->range->typical);
  CHECK(models::find_overhead(ours, "cublas_workspace") == nullptr);
  std::set<std::string> names;
  for (const auto& overhead : torch) CHECK(names.insert(overhead.name).second);
}
