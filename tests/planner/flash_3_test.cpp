// --attention flash-3: the blocks of FlashAttention 3 on Hopper, by hand from hopper/flash_api.cpp.
// The traces (tests/golden/traces, *-f3*) are of Transformers around blocks asked for in that
// order.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "planner/plan.h"
#include "planner/stacks/pytorch/attention_hopper.h"

using namespace plimsoll;
using models::Attention;
using planner::pytorch::hopper_backward;
using planner::pytorch::hopper_schedule;
using planner::pytorch::HopperAttention;

namespace {

using Blocks = std::array<std::int64_t, 6>;

Blocks backward(const HopperAttention& of) {
  Blocks found{};
  std::ranges::copy(hopper_backward(of), found.begin());
  return found;
}

struct Asked {
  Attention attention = Attention::flash_3;
  const char* gpu = "h100-sxm-80gb";
  models::Release transformers = models::kTransformers;
  models::Precision precision = models::Precision::bf16;
};

// Adapters alone are trained and nothing is recomputed: the loss is the peak, beside what all
// layers saved.
auto answer(const Asked& asked) {
  const models::ModelSpec model = models::catalog_model("llama-3.1-8b");
  planner::Question question;
  question.model = &model;
  question.strategy.attention = asked.attention;
  question.strategy.transformers = asked.transformers;
  question.strategy.precision = asked.precision;
  question.strategy.lora = models::Lora{.rank = 8};
  question.batch = {.seq_len = 1024};
  question.cluster.gpu = models::find_gpu(asked.gpu);
  question.remedies = false;
  return planner::plan(question);
}

Bytes peak(const Asked& asked) {
  return answer(asked).peak;
}

}  // namespace

TEST_CASE("flash-3: blocks of a backward, causal, with groups") {
  // Tiles of 64 queries and 128 keys, both of which divide 4096.
  const HopperAttention of{.samples = 1,
                           .tokens = 4096,
                           .length = 4096,
                           .groups = true,
                           .heads = 32,
                           .kv_heads = 8,
                           .head_dim = 128};
  CHECK(backward(of) == Blocks{131'072, 131'072, 16'777'216, 4'194'304, 4'194'304, 64 * 32});
}

TEST_CASE("flash-3: tiles of queries by width, and where rows end") {
  HopperAttention of{.samples = 3, .tokens = 300, .length = 100};
  const auto rows = [&](std::int64_t head_dim) {
    of.head_dim = head_dim;
    return backward(of)[0];
  };
  CHECK(rows(32) == 3 * 128);
  CHECK(rows(64) == 3 * 128);
  CHECK(rows(65) == 3 * 128);  // two tiles of 64
  of.length = 60;
  CHECK(rows(64) == 3 * 128);
  CHECK(rows(65) == 3 * 64);
  CHECK(rows(128) == 3 * 64);
  CHECK(rows(256) == 3 * 64);
  of.soft_cap = true;
  CHECK(rows(64) == 3 * 96);
  CHECK(rows(128) == 3 * 64);
  of.causal = false;  // as in an encoder
  CHECK(rows(64) == 3 * 128);
  CHECK(rows(128) == 3 * 64);
  of.soft_cap = false;
  CHECK(rows(96) == 3 * 64);
  CHECK(rows(128) == 3 * 80);
  CHECK(rows(192) == 3 * 64);
  of.windowed = true;
  CHECK(rows(128) == 3 * 64);
}

TEST_CASE("flash-3: dQ is as wide as a kernel, dK in tiles of its own") {
  HopperAttention of{
      .samples = 1, .tokens = 64, .length = 64, .groups = true, .heads = 4, .kv_heads = 2};
  const auto widths = [&](std::int64_t head_dim) {
    of.head_dim = head_dim;
    const Blocks blocks = backward(of);
    return std::array{blocks[2] / blocks[0], blocks[3] / 2};
  };
  using Pair = std::array<std::int64_t, 2>;
  CHECK(widths(80) == Pair{96, 128 * 96});
  CHECK(widths(96) == Pair{96, 128 * 96});
  CHECK(widths(128) == Pair{128, 128 * 128});
  CHECK(widths(160) == Pair{192, 96 * 192});
  CHECK(widths(200) == Pair{256, 80 * 256});
  of.groups = false;
  CHECK(backward(of)[3] == 0);
}

TEST_CASE("flash-3: samples of several lengths have a tile more each") {
  const HopperAttention of{.samples = 2,
                           .tokens = 100,
                           .length = 70,
                           .varies = true,
                           .groups = true,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 128};
  // 100 + 2 x 64 in tiles of 64; 100 + 2 x 128 in tiles of 128; 2 tiles of the longest.
  CHECK(backward(of) ==
        Blocks{4 * 256, 4 * 256, 4 * 256 * 128, 2 * 384 * 128, 2 * 384 * 128, 2 * 2 * 4});
}

TEST_CASE("flash-3: how tiles are scheduled") {
  HopperAttention of{.samples = 1, .tokens = 64, .length = 64};
  CHECK(hopper_schedule(of) == 1 + 4 * 2);
  of.samples = 5;
  CHECK(hopper_schedule(of) == 1 + 8 * 2);
  of.varies = true;
  CHECK(hopper_schedule(of) == 1 + 8 * 4);
  of.causal = false;
  CHECK(hopper_schedule(of) == 1 + 8 * 3);
  of.varies = false;
  CHECK(hopper_schedule(of) == 0);
  of.windowed = true;
  CHECK(hopper_schedule(of) == 1 + 8);
}

TEST_CASE("flash-3 keeps no state of a random generator") {
  const std::int64_t layers = 32, block = 512;  // of two numbers of 8 bytes
  CHECK(peak({.attention = Attention::flash_2}) - peak({}) == Bytes(layers * block));
}

TEST_CASE("on Hopper each package has its own speed") {
  const auto seconds = [](Attention attention, const char* gpu) {
    return answer({.attention = attention, .gpu = gpu}).time.step_seconds.value();
  };
  const char* h100 = "h100-sxm-80gb";
  CHECK(seconds(Attention::flash_3, h100) < seconds(Attention::flash, h100));
  CHECK(seconds(Attention::flash, h100) < seconds(Attention::flash_2, h100));
  CHECK(seconds(Attention::flash, "a100-sxm-80gb") == seconds(Attention::flash_2, "a100-sxm-80gb"));
}

TEST_CASE("flash-3 is refused where it does not run, and where it was not looked at") {
  CHECK_THROWS_WITH_AS((void)peak({.gpu = "a100-sxm-80gb"}),
                       "--attention flash-3: its kernels for Hopper are modelled (compute "
                       "capability 9.0), and a100-sxm-80gb has 8.0",
                       Error);
  CHECK_THROWS_WITH_AS((void)peak({.transformers = {4, 52, 4}}),
                       "--attention flash-3 needs Transformers 4.53.0 or newer "
                       "(--transformers-version)",
                       Error);
  CHECK_THROWS_WITH_AS((void)peak({.precision = models::Precision::fp32}),
                       "--attention flash-3: flash_attn computes in fp16 and bf16 only, not in "
                       "--precision fp32",
                       Error);
  CHECK_NOTHROW((void)peak({.transformers = {4, 53, 0}}));
  CHECK_NOTHROW((void)peak({.gpu = "h200"}));
}
