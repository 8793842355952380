#include "planner/time/compute_cost.h"

#include <doctest/doctest.h>

#include "models/gpu_catalog.h"
#include "tests/near.h"

using namespace plimsoll;
using planner::Cost;

namespace {

const planner::GpuRates& a100() {
  static const planner::GpuRates rates = planner::gpu_rates(models::find_gpu("a100-sxm-80gb"));
  return rates;
}

}  // namespace

TEST_CASE("rates are the catalog's peaks times named shares") {
  CHECK(a100().peaks[1] == 312e12);
  CHECK(tests::near(a100().gemms[1], 0.869 * 0.86 * 312e12, 1e-12));
  CHECK(tests::near(a100().gemms[0], 0.93 * 19.5e12, 1e-12));  // no TF32
  CHECK(tests::near(a100().memory, 0.9 * 2.039e12, 1e-12));
  CHECK(a100().multiprocessors == 108);
}

TEST_CASE("the optimizer's ops take what they move, or as long as the host needs to launch them") {
  models::Strategy s;
  s.compile =
      models::Compile::model;  // nothing compiles the optimizer: its bytes are the eager ones
  const planner::Execution e = planner::execution_of(s);
  planner::WorkSum sum;
  sum.moved = 28e9;
  sum.kernels = 1;
  CHECK(tests::near(planner::optimizer_cost(a100(), e, sum).seconds(), 28e9 / 1.8351e12, 1e-4));
  sum.kernels = 1e5;  // of 3 us each
  CHECK(tests::near(planner::optimizer_cost(a100(), e, sum).seconds(), 0.3, 1e-12));
}

TEST_CASE("work takes as long as the busier of GPU and host") {
  CHECK(Cost{2, 1, 2.5}.seconds() == 3);
  CHECK(Cost{2, 1, 4}.seconds() == 4);
  const Cost twice = 2 * Cost{2, 1, 4};
  CHECK(twice.gemm == 4);
  CHECK(twice.launches == 8);
}

TEST_CASE("the slowest of many lies further below the mean") {
  // Expected largest of n standard normal values: 1.4236 of 8, 2.3437 of 64 (Harter, 1961).
  CHECK(planner::slowest_of(1) == 0);
  CHECK(tests::near(planner::slowest_of(8), 1.4236, 0.01));
  CHECK(tests::near(planner::slowest_of(64), 2.3437, 0.02));
  CHECK(planner::slowest_of(512) > planner::slowest_of(64));
}

TEST_CASE("a GEMM cut into pieces adds each but the first into its result") {
  // The gradient of a head of 4096 x 128256 over 8192 tokens, 2048 at a time: 4 pieces, so 3 more
  // reads and writes of 525,336,576 elements of 2 bytes.
  const planner::Gemm whole{DType::bf16, 4096, 128256, 8192};
  planner::Gemm cut = whole;
  cut.cut = planner::Gemm::Cut::rows;
  cut.rows = 2048;
  cut.tokens_summed = true;
  const Cost one = planner::cost_of(a100(), whole), four = planner::cost_of(a100(), cut);
  CHECK(one.memory == 0);
  CHECK(tests::near(four.memory, 3 * 4 * 525336576.0 / a100().memory, 1e-12));
  CHECK(tests::near(four.gemm, one.gemm, 1e-12));
  // Liger: 8192 tokens over ceil(128256 / 4096) = 32 are 256 rows: 32 pieces.
  cut.cut = planner::Gemm::Cut::liger;
  cut.rows = 32;
  CHECK(tests::near(planner::cost_of(a100(), cut).memory, 31 * 4 * 525336576.0 / a100().memory,
                    1e-12));
}

TEST_CASE("many small GEMMs in one launch wait for one last wave") {
  // 512 of 1024 x 1024 x 64: 2 (512 x 2^20 + 256 x 128 x 108 / 2) x 64 FLOPs.
  const planner::Gemm gemm{DType::bf16, 1024, 1024, 64, 512};
  const double flops = 2 * (512.0 * 1048576 + 256 * 128 * 54) * 64;
  const double bytes = 2 * 512.0 * (2 * 1024 * 64 + 1048576);  // more than the FLOPs take
  CHECK(planner::cost_of(a100(), gemm).gemm == 0);
  CHECK(tests::near(planner::cost_of(a100(), gemm).memory, bytes / a100().memory, 1e-12));
  CHECK(bytes / a100().memory > flops / a100().gemms[1]);
}
