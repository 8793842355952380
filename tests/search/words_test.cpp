// Figures, names and ranks of the search, by hand.
#include "planner/search/words.h"

#include <doctest/doctest.h>

#include <cmath>

#include "models/storages.h"
#include "planner/search/axes.h"
#include "planner/search/concessions.h"
#include "planner/search/search.h"

using namespace plimsoll;
using namespace plimsoll::planner;
using namespace plimsoll::planner::search;
using models::Precision;
using models::RecomputeKind;
using models::Stack;

namespace {

Setting setting(Stack stack, int zero) {
  Setting x;
  x.strategy.stack = stack;
  x.strategy.gpus = 8;
  x.strategy.data.zero = zero;
  return x;
}

template <class Change>
Setting changed(Setting x, Change change) {
  change(x.strategy);
  return x;
}

}  // namespace

TEST_CASE("sizes have three figures or one digit behind the point, and their unit") {
  CHECK(gib(Bytes(102 << 20)) == "102 MiB");  // 0.0996 GiB
  CHECK(gib(Bytes(103 << 20)) == "0.10 GiB");
  CHECK(gib(Bytes(10LL << 30) - Bytes(1)) == "10.00 GiB");
  CHECK(gib(10_GiB) == "10.0 GiB");
  CHECK(gib(1023_GiB) == "1023.0 GiB");
  CHECK(gib(1024_GiB) == "1 TiB");
  CHECK(gib(1536_GiB) == "1.5 TiB");
}

TEST_CASE("times below a second are milliseconds, shares below one per cent have two digits") {
  CHECK(seconds(0.0114) == "11 ms");
  CHECK(seconds(0.9994) == "999 ms");
  CHECK(seconds(1) == "1.00 s");
  CHECK(percent(0.0094) == "0.94 %");
  CHECK(percent(0.0095) == "0.9 %");  // 0.95 is 0.9499... in binary
  CHECK(percent(0.152) == "15.2 %");
  CHECK(in_brackets(0.152) == " (15.2 % slower)");
  CHECK(in_brackets(-0.004) == " (0.40 % faster)");
  CHECK(in_brackets(0.000499) == "");
  CHECK(in_brackets(0.0005) == " (0.05 % slower)");
}

TEST_CASE("what makes another plan's compute longer: the first that applies") {
  const Setting first = setting(Stack::pytorch, 3);
  const auto why = [&](const Setting& other, bool sends_more = false, bool python_gelu = false) {
    return why_longer(first, other, sends_more, python_gelu);
  };
  CHECK(why(first) == "");
  CHECK(why(first, true) == " (collectives beside it take their share of the GPU)");
  CHECK(why(changed(first, [](auto& s) { s.recompute.kind = RecomputeKind::full; }), true) ==
        " (it must recompute: full)");
  // DDP and ZeRO-1 run the forward under autocast, FSDP casts each unit's weights once.
  for (const int zero : {0, 1}) {
    const Setting autocast = setting(Stack::pytorch, zero);
    CHECK(why(autocast) == " (autocast casts the weights and keeps the residual stream in fp32)");
    CHECK(why(autocast, true, true) ==
          " (autocast computes gelu_new and the residual stream in fp32)");
    CHECK(why(changed(autocast, [](auto& s) { s.precision = Precision::bf16; })) == "");
    const Setting adapters = changed(autocast, [](auto& s) {
      s.lora = models::Lora{};
      s.param_dtype = DType::bf16;
    });
    CHECK(why(adapters) ==
          " (PEFT keeps adapters in fp32: autocast casts what each of them reads)");
  }
  CHECK(why(setting(Stack::pytorch, 2)) == "");
  CHECK(why(setting(Stack::deepspeed, 0)) == "");
  Setting smaller = first;
  Setting larger = first;
  larger.batch.micro_batch = 4;
  smaller.batch.micro_batch = 3;
  CHECK(why_longer(larger, smaller, true, false) == " (its micro-batch is 3)");
  CHECK(why_longer(smaller, larger, false, false) == "");
}

// Knobs: a switch of a trainer counts one, what has to be written as code two.
TEST_CASE("what a setting asks of whoever sets it up") {
  const Setting ddp = setting(Stack::pytorch, 0), fsdp = setting(Stack::pytorch, 3);
  const auto knobs = [&](auto change) { return effort(changed(fsdp, change)).knobs; };
  CHECK(effort(ddp).knobs == 0);
  CHECK(effort(fsdp).knobs == 0);
  CHECK_FALSE(effort(fsdp).code);
  CHECK(effort(ddp).kind + 1 == effort(fsdp).kind);
  CHECK(effort(fsdp).kind < effort(setting(Stack::deepspeed, 0)).kind);
  CHECK(knobs([](auto& s) { s.data.zero = 2; }) == 1);  // reshard_after_forward: false
  CHECK(knobs([](auto& s) { s.data.zero = 1; }) ==
        2);  // ZeroRedundancyOptimizer is constructed by hand
  CHECK(effort(setting(Stack::deepspeed, 1)).knobs == 0);
  CHECK(effort(setting(Stack::deepspeed, 2)).knobs == 0);
  CHECK(knobs([](auto& s) { s.data.shard_group = 4; }) == 1);
  CHECK(knobs([](auto& s) { s.recompute.kind = RecomputeKind::full; }) == 1);
  CHECK(knobs([](auto& s) { s.recompute.kind = RecomputeKind::sqrt; }) == 2);
  CHECK(knobs([](auto& s) { s.loss = models::Loss::fused; }) == 2);
  CHECK(knobs([](auto& s) { s.attention = models::Attention::eager; }) == 1);
  CHECK(knobs([](auto& s) { s.attention = models::Attention::math; }) == 2);
  CHECK(knobs([](auto& s) { s.optimizer_impl = models::OptimizerImpl::fused; }) == 1);
  CHECK(effort(changed(fsdp, [](auto& s) { s.loss = models::Loss::fused; })).code);
  CHECK_FALSE(effort(changed(fsdp, [](auto& s) { s.recompute.kind = RecomputeKind::full; })).code);
}

// One margin for sharding, one more for a framework around PyTorch, and one for code.
TEST_CASE("speeds count less by a margin for what they ask") {
  const auto near = [](double a, double b) { return std::abs(a - b) < 1e-9; };
  constexpr double kLess = 1 - kTieMargin;
  CHECK(near(Ties::counted(setting(Stack::pytorch, 0), 100), 100));
  CHECK(near(Ties::counted(setting(Stack::pytorch, 3), 100), 100 * kLess));
  CHECK(near(Ties::counted(setting(Stack::deepspeed, 0), 100), 100 * kLess));
  CHECK(near(Ties::counted(setting(Stack::deepspeed, 2), 100), 100 * kLess * kLess));
  CHECK(near(Ties::counted_in_kind(setting(Stack::pytorch, 0), 100), 100));
  const Setting code =
      changed(setting(Stack::pytorch, 0), [](auto& s) { s.loss = models::Loss::fused; });
  CHECK(near(Ties::counted_in_kind(code, 100), 100 * (1 - kSameKindMargin)));
}

// A step down begins where a speed is a whole power of 1 - margin; on either side of each a
// thousandth is enough.
TEST_CASE("steps below the fastest") {
  Ties ties{.fastest = 100, .of_kind = 50};
  constexpr double kStep = 1 - kTieMargin, kKindStep = 1 - kSameKindMargin;
  CHECK(ties.steps_below(100) == 0);
  CHECK(ties.steps_below(100.1 * kStep) == 0);
  CHECK(ties.steps_below(99.9 * kStep) == 1);
  CHECK(ties.steps_below(100.1 * kStep * kStep) == 1);
  CHECK(ties.steps_below(99.9 * kStep * kStep) == 2);
  CHECK(ties.steps_below(99.9 / kStep) == -1);  // faster than the fastest that fits
  CHECK(ties.steps_below(100.1 / kStep) == -2);
  CHECK(ties.steps_below(0) == std::numeric_limits<std::int64_t>::max());
  CHECK(ties.steps_in_kind(50.05 * kKindStep) == 0);
  CHECK(ties.steps_in_kind(49.95 * kKindStep) == 1);
  CHECK(ties.steps_in_kind(49.95 * kKindStep * kKindStep) == 2);
  ties.of_kind = 0;  // one in a thousand, while it is looked for
  CHECK(ties.steps_in_kind(99.91) == 0);
  CHECK(ties.steps_in_kind(99.89) == 1);
}

TEST_CASE("a step's parts are told with what limits it; communication only where there is some") {
  StepTime time{.step = 1.5,
                .compute = 0.9,
                .exposed_communication = 0.25,
                .optimizer = 0.0354,
                .communication = 2.5,
                .limit = Limit::inter_node};
  CHECK(parts_of_step(time) ==
        "A step takes 1.50 s: 900 ms of compute, 250 ms of communication that is not hidden (of "
        "2.50 s), 35 ms for the optimizer. The limit is links between nodes.");
  time.communication = time.exposed_communication = 0;
  time.limit = Limit::compute;
  CHECK(parts_of_step(time) ==
        "A step takes 1.50 s: 900 ms of compute, 35 ms for the optimizer. The limit is compute.");
}

// Two nodes of 4 ranks: what a rank holds on the host stands four times on each.
TEST_CASE("each concession is told with what it costs, and nothing else is") {
  Setting x = setting(Stack::pytorch, 3);
  x.strategy.gpus_per_node = 4;
  reports::Plan plan;
  plan.host_pinned = 2_GiB;
  plan.host_pageable = 1_GiB;
  CHECK(costs_of_concessions(x, plan).empty());
  x.concession = kAdapters | kUntriedStack | kOtherNumerics;
  CHECK(costs_of_concessions(x, plan).empty());
  x.concession = kStatesIn8Bits;
  CHECK(costs_of_concessions(x, plan) ==
        std::vector<std::string>{
            "Optimizer states in 8 bits are a concession: 256 values share a scale."});
  x.concession = kPackedBase;
  x.strategy.quantize = models::Quantization{.storage = models::find_packed_storage("nf4-dq")};
  CHECK(costs_of_concessions(x, plan) ==
        std::vector<std::string>{
            "A packed base is a concession: its frozen weights are rounded to 4 bits (nf4-dq), and "
            "every GEMM makes them anew in 16."});
  for (const int offloads : {kOffloads, kOffloadsPacked}) {
    x.concession = static_cast<std::uint8_t>(offloads);
    x.strategy.offload.params = true;
    const std::vector<std::string> costs = costs_of_concessions(x, plan);
    REQUIRE(costs.size() == 1);
    CHECK(
        costs[0].starts_with("Offloading is a concession: 12.0 GiB of each node's memory hold "
                             "parameters, gradients and optimizer states, and"));
    x.strategy.offload.params = false;
    CHECK(costs_of_concessions(x, plan)[0].find("hold the optimizer's states, and") !=
          std::string::npos);
  }
  x.concession = 0;
  x.strategy.precision = Precision::bf16;
  CHECK(costs_of_concessions(x, plan) ==
        std::vector<std::string>{
            "Pure bf16 is a concession: without fp32 master weights, updates smaller than 1/256 of "
            "a weight are lost."});
}

TEST_CASE("the rungs of sharding have the names of their frameworks") {
  CHECK(rung_name(Stack::pytorch, 0) == "Plain DDP");
  CHECK(rung_name(Stack::deepspeed, 3).find("ZeRO-3") != std::string::npos);
  CHECK(rung_name(Stack::pytorch, 2) != rung_name(Stack::pytorch, 3));
}

// bitsandbytes inside ZeroRedundancyOptimizer and FSDP1 is refused, FSDP's parameters are offloaded
// from stage 2 on, DeepSpeed's states from stage 1 on.
TEST_CASE("what was conceded is sharded only where its stack takes it") {
  Setting x = setting(Stack::pytorch, 0);
  for (int stage = 0; stage <= 3; ++stage) CHECK(takes_stage(x, stage));
  const auto taken = [](const Setting& of) {
    std::string out;
    for (int stage = 0; stage <= 3; ++stage) out += takes_stage(of, stage) ? '1' : '0';
    return out;
  };
  for (const int offloads : {kOffloads, kOffloadsPacked}) {
    x.concession = static_cast<std::uint8_t>(offloads);
    x.strategy.offload.params = true;
    CHECK(taken(x) == "0011");
    x.strategy.offload = {};
    x.strategy.offload.optimizer = true;
    CHECK(taken(x) == "0111");
    x.strategy.offload = {};
  }
  x.concession = kPackedBase;
  CHECK(taken(x) == "1111");
  x.strategy.data.fsdp_version = 1;
  CHECK(taken(x) == "1101");
  x.concession = kStatesIn8Bits;
  x.strategy.optimizer = models::Optimizer::adam8bit;
  CHECK(taken(x)[0] == '1');
  CHECK(taken(x)[1] == '0');
  Setting engine = setting(Stack::deepspeed, 0);
  engine.concession = kPackedBase;
  CHECK(taken(engine) == "1111");
  engine.concession = kStatesIn8Bits;
  engine.strategy.optimizer = models::Optimizer::adam8bit;
  CHECK(taken(engine) == "1111");
}

TEST_CASE("a base that is sharded is held in floats of the training's own 16 bits") {
  for (const auto& [precision, dtype] :
       {std::pair(Precision::bf16_mixed, DType::bf16), {Precision::fp16_mixed, DType::fp16}})
    for (int zero = 0; zero <= 3; ++zero) {
      Setting x = setting(Stack::pytorch, zero);
      x.strategy.precision = precision;
      x.concession = kPackedBase;
      x.parts = kOwnAdapters + kPackedInIntegers;
      x.strategy.quantize = models::Quantization{.storage = models::find_packed_storage("nf4-dq")};
      hold_packed(x);
      CHECK(x.strategy.quantize->held_in == (zero >= 2 ? dtype : DType::uint8));
      CHECK(x.parts == kOwnAdapters + (zero >= 2 ? kPackedInFloats : kPackedInIntegers));
      CHECK(quantize_option(x) ==
            "--quantize nf4-dq" +
                (zero < 2 ? "" : " --quant-storage " + std::string(name_of(dtype))));
      x.concession = 0;  // the user's own
      const Setting before = x;
      hold_packed(x);
      CHECK(x.parts == before.parts);
      CHECK(quantize_option(x) == "");
    }
  Setting engine = setting(Stack::deepspeed, 2);  // whole on each GPU
  engine.concession = kPackedBase;
  engine.strategy.quantize = models::Quantization{.storage = models::find_packed_storage("nf4-dq")};
  hold_packed(engine);
  CHECK(engine.strategy.quantize->held_in == DType::uint8);
}
