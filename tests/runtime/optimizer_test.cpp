#include "runtime/optimizer.h"

#include <cmath>

#include <doctest/doctest.h>

#include "tests/near.h"
#include "tests/runtime/sharded_step.h"

namespace plimsoll::runtime {
namespace {

using models::Optimizer;
using models::decisions::kLayerUnit;

// One step on one rank from weights and gradients that are given; the weights afterwards.
struct OneStep {
  std::vector<float> weights, gradients;
  OptimizerStep step;
  models::Precision precision = models::Precision::fp32;
  int times = 1;
  float loss_scale = 1;
  float max_norm = 0;
};
struct AfterStep {
  std::vector<float> weights, masters;
  float norm = 0, factor = 0;
  std::int32_t overflow = 0;
};
AfterStep after(const OneStep& one) {
  AfterStep result;
  StepCase c;
  c.precision = one.precision;
  c.optimizer = one.step.options.kind;
  const auto world = comm::single_communicator();
  ShardedRank rank(c, *world);
  const auto n = static_cast<std::int64_t>(one.weights.size());
  const auto unit = rank.unit(kLayerUnit, "", {{"w", {n}}});
  shard::Unit* units[] = {unit.get()};
  unit->allocate();
  unit->load([&](std::size_t, std::int64_t, std::span<float> to) {
    std::copy(one.weights.begin(), one.weights.end(), to.begin());
  });
  rank.worker.workspace = rank.worker.memory.allocate(
      "workspace", Category::workspace, DType::uint8, {gradient_norm_workspace(units).value()});
  const Scalars scalars(rank.scalar_block.view());
  for (int i = 0; i < one.times; ++i) {
    Op op(rank.worker, "step");
    unit->begin_micro_batch(0, 1);
    rank.worker.kernels.cast({one.gradients.data(), DType::fp32, {n}}, unit->gradient(0));
    gradient_norm(rank.worker, units, *world, one.max_norm, one.loss_scale, scalars);
    OptimizerStep step = one.step;
    step.number += i;
    step.factor = scalars.factor();
    step.overflow = scalars.overflow();
    unit->step(op, step);
  }
  result.weights = unit->whole(shard::State::weights)[0];
  result.masters = unit->whole(shard::State::masters)[0];
  result.norm = *static_cast<const float*>(scalars.norm().data);
  result.factor = *static_cast<const float*>(scalars.factor().data);
  result.overflow = *static_cast<const std::int32_t*>(scalars.overflow().data);
  return result;
}

OptimizerStep with(Optimizer kind, float learning_rate, float weight_decay) {
  OptimizerStep step;
  step.options.kind = kind;
  step.options.weight_decay = weight_decay;
  step.learning_rate = learning_rate;
  return step;
}

TEST_CASE("AdamW's first steps are those of a calculation by hand") {
  // Step 1: m / (1 - b1) = g, v / (1 - b2) = g²: the step is lr · g / |g|, after the decay.
  // w = 1 · (1 - 0.1 · 0.01) - 0.1 = 0.899; -2 · 0.999 + 0.1 = -1.898; g = 0: 3 · 0.999 = 2.997
  const OneStep one{{1, -2, 3}, {0.5f, -0.25f, 0}, with(Optimizer::adamw, 0.1f, 0.01f)};
  const AfterStep first = after(one);
  CHECK(tests::near(first.weights[0], 0.899, 1e-6));
  CHECK(tests::near(first.weights[1], -1.898, 1e-6));
  CHECK(tests::near(first.weights[2], 2.997, 1e-6));
  // Step 2 with the same gradient: m = 0.19 g, 1 - b1² = 0.19; v likewise: again lr · sign(g).
  // 0.899 · 0.999 - 0.1 = 0.798101
  OneStep two = one;
  two.times = 2;
  CHECK(tests::near(after(two).weights[0], 0.798101, 1e-6));
}

TEST_CASE("momentum and plain SGD are those of a calculation by hand") {
  // g = 2 + 0.5 · 4 = 4 (decay 0.5 of w = 4): w = 4 - 0.1 · 4 = 3.6
  CHECK(tests::near(after({{4}, {2}, with(Optimizer::sgd, 0.1f, 0.5f)}).weights[0], 3.6, 1e-5));
  // m = 2, then 0.9 · 2 + 2 = 3.8: w = 1 - 0.2 - 0.38 = 0.42
  OneStep two{{1}, {2}, with(Optimizer::momentum, 0.1f, 0)};
  two.times = 2;
  CHECK(tests::near(after(two).weights[0], 0.42, 1e-5));
}

TEST_CASE("Lion's first steps are those of a calculation by hand") {
  // Step 1: c = 0.1 g: w = 1 · (1 - 0.1 · 0.01) - 0.1 = 0.899; -2 · 0.999 + 0.1 = -1.898; g = 0:
  // sign(0) = 0 and the decay alone: 2.997.
  const OneStep one{{1, -2, 3}, {0.5f, -0.25f, 0}, with(Optimizer::lion, 0.1f, 0.01f)};
  const AfterStep first = after(one);
  CHECK(tests::near(first.weights[0], 0.899, 1e-6));
  CHECK(tests::near(first.weights[1], -1.898, 1e-6));
  CHECK(tests::near(first.weights[2], 2.997, 1e-6));
  OneStep two = one;
  two.times = 2;  // 0.899 · 0.999 - 0.1
  CHECK(tests::near(after(two).weights[0], 0.798101, 1e-6));
}

TEST_CASE("gradients longer than the bound are shortened to it, and the loss scale is taken out") {
  // |(3, 4)| = 5 with a scale of 8: true norm 0.625. To 0.25: factor 0.4 / 8 = 0.05 (0.25 / 0.625).
  // SGD with rate 1: w = 0 - (3, 4) · 0.05
  OneStep one{{0, 0}, {3, 4}, with(Optimizer::sgd, 1, 0)};
  one.loss_scale = 8;
  one.max_norm = 0.25f;
  const AfterStep clipped = after(one);
  CHECK(clipped.norm == 0.625f);
  CHECK(tests::near(clipped.factor, 0.05, 1e-5));
  CHECK(tests::near(clipped.weights[0], -0.15, 1e-5));
  CHECK(tests::near(clipped.weights[1], -0.2, 1e-5));
  one.max_norm = 0;  // 3 / 8
  CHECK(after(one).weights[0] == -0.375f);
}

TEST_CASE("16-bit weights are the rounding of masters that keep small updates") {
  // bf16's spacing at 1 is 2^-7: a step of 0.001 leaves the weight, not the master.
  OneStep one{{1}, {1}, with(Optimizer::sgd, 0.001f, 0)};
  one.precision = models::Precision::bf16_mixed;
  const AfterStep once = after(one);
  CHECK(once.weights[0] == 1);
  CHECK(tests::near(once.masters[0], 0.999, 1e-5));
  one.times = 10;  // 0.99: between 0.98828125 and 0.9921875
  CHECK(after(one).weights[0] == 0.98828125f);
}

TEST_CASE("pure bf16 rounds stochastically: small updates arrive on average") {
  // 4096 weights of 1, ten steps of 0.001 each: expected 0.99, the spacing below 1 is 2^-8. One
  // rounding has at most variance 2^-18: of the mean of 4096 after ten sqrt(10) · 2^-9 / 64 = 1e-4.
  OneStep one{std::vector<float>(4096, 1), std::vector<float>(4096, 1),
              with(Optimizer::sgd, 0.001f, 0)};
  one.precision = models::Precision::bf16;
  one.times = 10;
  double mean = 0;
  for (const float w : after(one).weights) mean += w / 4096.0;
  CHECK(tests::near(mean, 0.99, 4e-4));
}

TEST_CASE("an overflow changes nothing") {
  OneStep one{{1, 2}, {INFINITY, 1}, with(Optimizer::adamw, 0.1f, 0.01f)};
  one.precision = models::Precision::fp16_mixed;
  const AfterStep skipped = after(one);
  CHECK(skipped.overflow == 1);
  CHECK(skipped.weights == std::vector<float>{1, 2});
  CHECK(skipped.masters == std::vector<float>{1, 2});
}

TEST_CASE("an optimizer that this runtime has not is refused") {
  for (const models::OptimizerRule& rule : models::kOptimizers) {
    CAPTURE(rule.name);
    if (rule.in_runtime)
      CHECK(&runtime_rule(rule.kind) == &rule);
    else
      CHECK_THROWS_WITH_AS(runtime_rule(rule.kind), doctest::Contains("this runtime has adamw, "),
                           Error);
  }
}

TEST_CASE("the loss scale halves on overflow and doubles after enough good steps in a row") {
  LossScaler scaler(true);
  CHECK(scaler.scale() == 65536);
  scaler.update(true);
  CHECK(scaler.scale() == 32768);
  for (int i = 0; i < 1999; ++i) scaler.update(false);
  CHECK(scaler.scale() == 32768);
  scaler.update(true);  // counts anew
  for (int i = 0; i < 1999; ++i) scaler.update(false);
  CHECK(scaler.scale() == 16384);
  scaler.update(false);
  CHECK(scaler.scale() == 32768);
  CHECK(scaler.good_steps() == 0);
}

TEST_CASE("the loss scale stays what fp32 can hold, and 1 where there is no scaling") {
  LossScaler large(true, {.initial = 0x1p127, .growth_interval = 1});
  large.update(false);  // 2^128 is no fp32
  CHECK(large.scale() == 0x1p127);
  LossScaler off(false);
  off.update(true);
  CHECK(off.scale() == 1);
}

TEST_CASE("the norm's workspace is a sum for each 65 536 elements of a tensor, and one a tensor") {
  StepCase c;
  const auto world = comm::single_communicator();
  ShardedRank rank(c, *world);
  // ceil(150500 / 65536) = 3; 1; frozen none: (3 + 1 + 2) · 8 B
  const auto unit = rank.unit(kLayerUnit, "", {{"w", {301, 500}}, {"b", {7}}, {"f", {9}, false}});
  shard::Unit* units[] = {unit.get()};
  CHECK(gradient_norm_workspace(units) == Bytes(48));
}

}  // namespace
}  // namespace plimsoll::runtime
