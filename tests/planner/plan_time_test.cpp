// The time of a plan: contract of `time` in plimsoll.plan/1.
#include "planner/time/plan_time.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "tests/near.h"

using namespace plimsoll;

namespace {

struct Asked {
  models::ModelSpec model = models::catalog_model("gpt2");
  planner::Question question;
  explicit Asked(const char* gpu) {
    question.model = &model;
    question.strategy.gpus = 16;
    question.batch = {.seq_len = 1024, .micro_batch = 4, .grad_accum = 2};
    question.detail = planner::Detail::none;
    if (gpu != nullptr) question.cluster.gpu = models::find_gpu(gpu);
  }
  reports::Plan plan() { return planner::plan(question); }
};

}  // namespace

TEST_CASE("throughput and utilization follow from the step's seconds") {
  Asked asked("a100-sxm-80gb");
  const reports::Plan plan = asked.plan();
  const reports::Time& time = plan.time;
  const double step = time.step_seconds.value();
  // 1024 x 4 x 2 tokens on each of 16 GPUs.
  CHECK(tests::near(time.tokens_per_second.value(), 131072 / step, 1e-12));
  CHECK(tests::near(time.tokens_per_second_per_gpu.value(), 8192 / step, 1e-12));
  CHECK(time.peak_flops.value() == 312e12);
  CHECK(tests::near(time.mfu.value(), plan.model_flops_per_step / (step * 16 * 312e12), 1e-12));
  // 12 layers x 768 wide, scores of 1024: 6 * 12 * 768 * 1024 = 56,623,104 FLOPs a token.
  CHECK(tests::near(time.mfu_full_attention.value(),
                    (plan.model_flops_per_step + 56623104.0 * 131072) / (step * 16 * 312e12),
                    1e-12));
  CHECK(tests::near(time.hfu.value(), plan.hardware_flops_per_step / (step * 16 * 312e12), 1e-12));
  CHECK_FALSE(time.limited_by.empty());
  asked.question.strategy.recompute.kind = models::RecomputeKind::full;
  const reports::Plan again = asked.plan();
  CHECK(again.hardware_flops_per_step > plan.hardware_flops_per_step);
  CHECK(again.time.step_seconds.value() > step);
}

TEST_CASE("an unknown GPU, one without the precision's units, and the host have no time") {
  CHECK_FALSE(Asked(nullptr).plan().time.step_seconds);
  const reports::Plan turing = Asked("t4").plan();  // no bf16
  CHECK_FALSE(turing.time.step_seconds);
  CHECK_FALSE(turing.time.peak_flops);
  Asked host("a100-sxm-80gb");
  host.question.strategy.stack = models::Stack::plimsoll;
  host.question.strategy.device = models::Device::cpu;
  CHECK_FALSE(host.plan().time.step_seconds);
  CHECK_FALSE(host.plan().time.peak_flops);
}

TEST_CASE("our own runtime's reductions run beside nothing where it steps in the backward") {
  Asked asked("a100-sxm-80gb");
  asked.question.strategy.stack = models::Stack::plimsoll;
  for (const int zero : {0, 1, 2, 3}) {
    CAPTURE(zero);
    asked.question.strategy.data.zero = zero;
    asked.question.batch.grad_accum = 1;
    asked.question.strategy.optimizer_in_backward = false;
    const reports::Time usual = asked.plan().time;
    asked.question.strategy.optimizer_in_backward = true;
    const reports::Time early = asked.plan().time;
    CHECK(tests::near(early.communication_seconds.value(), usual.communication_seconds.value(),
                      1e-12));
    CHECK(early.exposed_communication_seconds.value() >
          usual.exposed_communication_seconds.value());
    if (zero < 3)  // which also gathers, beside its neighbours
      CHECK(tests::near(early.exposed_communication_seconds.value(),
                        early.communication_seconds.value(), 1e-12));
    // The norm of all gradients is not read.
    CHECK(early.optimizer_seconds.value() < usual.optimizer_seconds.value());
  }
}

// 8,192 tokens, 768 wide in 16 bits, 12 layers: 151 MB out and as many back, at 0.8 of the bus.
// Forward a quarter of the compute runs beside them, backward three; the first layer's way back
// beside nothing.
TEST_CASE("inputs that our own runtime keeps on the host take what nothing hides") {
  Asked asked("a100-sxm-80gb");
  asked.question.strategy.stack = models::Stack::plimsoll;
  asked.question.strategy.recompute.kind = models::RecomputeKind::full;
  const reports::Time plain = asked.plan().time;
  asked.question.strategy.offload.activations = true;
  const double compute = plain.compute_seconds.value();
  for (const double bus : {32e9, 4e9, 1e9}) {
    asked.question.cluster.gpu->pcie_bandwidth = bus;
    const reports::Time time = asked.plan().time;
    const double copy = 8192.0 * 768 * 12 * 2 / (0.8 * bus);
    const double exposed =
        std::max(0.0, copy - compute / 4) + std::max(0.0, copy - 3 * compute / 4) + copy / 12;
    CAPTURE(bus);
    CHECK(time.compute_seconds.value() == compute);
    CHECK(tests::near(time.step_seconds.value() - plain.step_seconds.value(), exposed, 1e-9));
    CHECK(tests::near(time.communication_seconds.value() - plain.communication_seconds.value(),
                      2 * copy, 1e-9));
  }
}

TEST_CASE("the cluster's bandwidths act, and are named among the assumptions") {
  Asked asked("a100-sxm-80gb");
  asked.question.strategy.data.zero = 3;
  const reports::Plan before = asked.plan();
  asked.question.cluster.inter_node_bandwidth = 1e9;
  const reports::Plan slower = asked.plan();
  CHECK(slower.time.step_seconds.value() > before.time.step_seconds.value());
  CHECK(slower.time.exposed_communication_seconds.value() >
        before.time.exposed_communication_seconds.value());
  CHECK(slower.time.limited_by == "links between nodes");
  asked.question.cluster.inter_node_bandwidth.reset();
  asked.question.cluster.intra_node_bandwidth = 1e9;
  CHECK(asked.plan().time.step_seconds.value() > before.time.step_seconds.value());
  const auto named = [](const reports::Plan& plan, const std::string& what) {
    for (const reports::Assumption& a : plan.assumptions)
      if (a.what == what) return a.value + " " + a.basis;
    return std::string();
  };
  CHECK(named(before, "time: links between nodes, GB/s per GPU") == "25 assumed");
  CHECK(named(slower, "time: links between nodes, GB/s per GPU") == "1 derived");
}

TEST_CASE("where the GPU waits for the host the advice is a larger micro-batch") {
  Asked asked("a100-sxm-80gb");
  asked.question.strategy.gpus = 1;
  asked.question.strategy.data = {};
  asked.question.batch = {.seq_len = 128};
  const auto of_host = [](const reports::Plan& plan) {
    return std::ranges::count_if(plan.advice, [](const std::string& line) {
      return line.starts_with("The host is the limit: it needs ") &&
             line.find("--micro-batch") != std::string::npos;
    });
  };
  const reports::Plan small = asked.plan();
  CHECK(small.time.limited_by == "kernel launches");
  CHECK(of_host(small) == 1);
  asked.question.batch.micro_batch = 64;
  const reports::Plan large = asked.plan();
  CHECK(large.time.limited_by != "kernel launches");
  CHECK(of_host(large) == 0);
}
