#include "planner/time/compute_cost.h"

#include <doctest/doctest.h>

#include "models/gpu_catalog.h"
#include "planner/time/row_traffic.h"
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
  CHECK(tests::near(a100().products[1], 0.869 * 0.86 * 312e12, 1e-12));
  CHECK(tests::near(a100().products[0], 0.93 * 19.5e12, 1e-12));  // no TF32
  CHECK(tests::near(a100().memory, 0.9 * 2.039e12, 1e-12));
  CHECK(a100().multiprocessors == 108);
}

TEST_CASE("AdamW moves 28 bytes an fp32 element when fused, 80 in lists") {
  models::Strategy s;
  s.optimizer_impl = models::OptimizerImpl::fused;
  const planner::Execution e = planner::execution_of(s, {});
  CHECK(e.stored == 4);
  // 1e9 elements x 28 B over 1.8351 TB/s; one launch.
  CHECK(tests::near(planner::optimizer_cost(a100(), s, e, 1e9, 300).seconds(), 28e9 / 1.8351e12,
                    1e-4));
  s.optimizer_impl = models::OptimizerImpl::foreach;
  CHECK(tests::near(planner::optimizer_cost(a100(), s, e, 1e9, 300).seconds(), 80e9 / 1.8351e12,
                    1e-4));
  // A loop over 3000 tensors of 10 elements waits for the host: 8 kernels of 6 us each.
  s.optimizer_impl = models::OptimizerImpl::for_loop;
  CHECK(tests::near(planner::optimizer_cost(a100(), s, e, 30000, 3000).seconds(), 8 * 3000 * 6e-6,
                    1e-12));
}

TEST_CASE("with fp32 masters beside 16-bit weights an element moves 28 bytes too") {
  models::Strategy s;
  s.stack = models::Stack::plimsoll;  // master, m, v read and written, gradient 2, weight 2
  const planner::Execution e = planner::execution_of(s, {});
  CHECK(tests::near(planner::optimizer_cost(a100(), s, e, 1e9, 300).seconds(), 28e9 / 1.8351e12,
                    1e-4));
}

TEST_CASE("what runs in which width follows the stack and its data parallelism") {
  models::Strategy s;  // DDP under autocast: fp32 weights and stream
  planner::Execution e = planner::execution_of(s, {});
  CHECK(e.autocast);
  CHECK(e.residual == 4);
  CHECK(e.reduced == 4);
  s.data.zero = 3;  // FSDP's policy
  e = planner::execution_of(s, {});
  CHECK_FALSE(e.autocast);
  CHECK(e.residual == 2);
  CHECK(e.gathered == 2);
  CHECK(e.stored == 4);
  s.data.reduce_dtype = DType::fp32;
  CHECK(planner::execution_of(s, {}).reduced == 4);
  s = {};
  s.precision = models::Precision::bf16;
  CHECK(planner::execution_of(s, {}).stored == 2);
}

TEST_CASE("an eager RMSNorm moves 36 bytes an element in bf16, a fused one 4") {
  planner::LayerCost layer;
  layer.hidden = 1;  // every other width is 0
  layer.rope = false;
  planner::Execution e;
  // Two norms, two sums of 2 r + c = 6 bytes: 2 x 36 + 2 x 6.
  CHECK(planner::layer_traffic(layer, e).forward == 84);
  e.fused = true;
  CHECK(planner::layer_traffic(layer, e).forward == 20);  // 2 x 4 + 2 x 6
}

TEST_CASE("turning a quarter of each head moves a quarter, and joins it with the rest") {
  planner::LayerCost layer;
  layer.q_width = 1;
  const planner::Execution e;
  CHECK(planner::layer_traffic(layer, e).forward == 24);  // 12 c
  layer.rotated = 0.25;
  CHECK(planner::layer_traffic(layer, e).forward == 10);  // 3 c + 2 c
}

// torch's list of operations that autocast runs in fp32 has pow; every other one of
// NewGELUActivation takes the widest of its operands.
TEST_CASE("GPT-2's GELU of eight operations moves twice as much under autocast as in bf16") {
  planner::LayerCost layer;
  layer.ffn = 1;
  layer.rope = layer.swiglu = layer.rms_norm = false;
  layer.python_gelu = true;
  models::Strategy s;
  s.data.zero = 3;  // FSDP's policy
  CHECK(planner::layer_traffic(layer, planner::execution_of(s, {})).forward == 36);
  s.data.zero = 0;
  // A copy of x in fp32 6, then 8 + 8 + 10 + 8 + 8 + 8 + 4 + 10.
  CHECK(planner::layer_traffic(layer, planner::execution_of(s, {})).forward == 70);
  s.param_dtype = DType::bf16;  // x is in bf16 as before
  CHECK(planner::layer_traffic(layer, planner::execution_of(s, {})).forward == 70);
  s.compile = true;
  CHECK(planner::layer_traffic(layer, planner::execution_of(s, {})).forward < 10);
}

TEST_CASE("work takes as long as the busier of GPU and host") {
  CHECK(Cost{2, 1, 2.5}.seconds() == 3);
  CHECK(Cost{2, 1, 4}.seconds() == 4);
  const Cost twice = 2 * Cost{2, 1, 4};
  CHECK(twice.products == 4);
  CHECK(twice.launches == 8);
}

TEST_CASE("the slowest of many lies further below the mean") {
  // Expected largest of n standard normal values: 1.4236 of 8, 2.3437 of 64 (Harter, 1961).
  CHECK(planner::slowest_of(1) == 0);
  CHECK(tests::near(planner::slowest_of(8), 1.4236, 0.01));
  CHECK(tests::near(planner::slowest_of(64), 2.3437, 0.02));
  CHECK(planner::slowest_of(512) > planner::slowest_of(64));
}

TEST_CASE("a chunked head is multiplied again, and each chunk adds into the weight's gradient") {
  planner::EndsCost ends;
  ends.hidden = 4096;
  ends.vocab = 128256;
  ends.head = {.in = 4096, .out = 128256};
  models::Strategy s;
  s.stack = models::Stack::plimsoll;
  const auto work = [&](models::Loss loss) {
    s.loss = loss;
    const planner::Execution e = planner::execution_of(s, {.seq_len = 8192});
    return planner::ends_work(a100(), ends, e);
  };
  const planner::EndsWork full = work(models::Loss::full), chunked = work(models::Loss::chunked);
  // The logits once more: at least 2 x 8192 x 4096 x 128256 FLOPs.
  CHECK(chunked.backward.products - full.backward.products >
        2.0 * 8192 * 4096 * 128256 / a100().products[1]);
  // 4 chunks of 2048 rows (models/decisions/loss.h): 3 times 2 x 2 bytes of 525,336,576 elements.
  CHECK(tests::near(chunked.backward.memory - full.backward.memory,
                    3 * 4 * 525336576.0 / a100().memory, 1e-12));
  const planner::EndsWork fused = work(models::Loss::fused);
  CHECK(fused.backward.products == 0);  // all of it in forward
  CHECK(fused.forward.products < chunked.forward.products + chunked.backward.products);
}
