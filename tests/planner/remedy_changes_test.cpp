// Which changes are offered beside a question, in which order, and what each of them does.
#include "planner/remedy_changes.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "models/model_catalog.h"
#include "tests/planner/lines.h"

using namespace plimsoll;
using models::Attention;
using models::Loss;
using models::Optimizer;
using models::OptimizerImpl;
using models::Precision;
using models::RecomputeKind;
using models::Stack;
using planner::Change;
using planner::Question;
using tests::Lines;

namespace {

struct Asked {
  models::ModelSpec model = models::catalog_model("llama-2-7b");
  Question q;
  explicit Asked(const std::function<void(Question&)>& with = nullptr) {
    q.model = &model;
    q.batch = {.seq_len = 512};
    // What the lists below are about, unless they say otherwise.
    q.fixed = {"gpus", "kernels", "lora-rank", "optimizer", "precision", "loss", "optimizer-impl"};
    if (with) with(q);
  }
};

// "price.level option" of all changes, in their order.
Lines offered(const std::function<void(Question&)>& with) {
  const Asked asked(with);
  Lines lines;
  for (const Change& change : planner::changes_for(asked.q))
    lines.push_back(std::to_string(static_cast<int>(change.price)) + "." +
                    std::to_string(change.level) + " " + change.option);
  return lines;
}

// As above without what is always there: full recomputation.
Lines further(const std::function<void(Question&)>& with) {
  Lines lines = offered(with);
  std::erase_if(lines, [](const std::string& line) { return line.ends_with("--recompute full"); });
  return lines;
}

// The question after the change with this option.
Question after(const std::function<void(Question&)>& with, const std::string& option) {
  const Asked asked(with);
  Question changed = asked.q;
  int found = 0;
  for (const Change& change : planner::changes_for(asked.q))
    if (change.option == option) {
      change.apply(changed);
      ++found;
    }
  CHECK(found == 1);
  return changed;
}

void sharded(Question& q, Stack stack, int zero, std::int64_t gpus = 8) {
  q.strategy.stack = stack;
  q.strategy.data.zero = zero;
  q.strategy.gpus = gpus;
}

}  // namespace

TEST_CASE("all that one GPU in mixed precision is offered, by its price") {
  CHECK(offered([](Question& q) {
          q.fixed.clear();
          q.batch.seq_len = 4096;
        }) == Lines{"0.0 --optimizer-impl fused", "0.0 --kernels liger", "0.0 --loss fused",
                    "1.0 --recompute full", "2.0 --gpus 8 --zero 3", "2.1 --gpus 16 --zero 3",
                    "2.2 --gpus 32 --zero 3", "2.3 --gpus 64 --zero 3", "3.0 --seq-len 2048",
                    "3.1 --seq-len 1024", "3.2 --seq-len 512",
                    "4.0 --lora-rank 16 --lora-targets all-linear --param-dtype bf16",
                    "5.0 --optimizer adam8bit", "5.0 --precision bf16"});
}

TEST_CASE("what changes no result is offered where it is not there yet") {
  const auto free = [](const std::function<void(Question&)>& with) {
    Lines lines = further([&](Question& q) {
      q.fixed = {"gpus", "kernels", "lora-rank", "optimizer", "precision"};
      with(q);
    });
    return lines;
  };
  CHECK(free([](Question& q) { q.strategy.optimizer_impl = OptimizerImpl::fused; }) ==
        Lines{"0.0 --loss fused"});
  CHECK(free([](Question& q) {
          q.strategy.optimizer_impl = OptimizerImpl::for_loop;
          q.strategy.loss = Loss::fused;
        }) == Lines{"0.0 --optimizer-impl fused"});
  CHECK(free([](Question& q) { q.strategy.stack = Stack::plimsoll; }) == Lines{"0.0 --loss fused"});
  CHECK(free([](Question& q) {
          q.strategy.stack = Stack::deepspeed;
          q.strategy.loss = Loss::chunked;
        }) == Lines{"0.0 --loss fused"});
  // Scores that are stored are the first thing to give up; selective recomputation is of them.
  for (const Attention stores : {Attention::eager, Attention::math})
    CHECK(offered([&](Question& q) { q.strategy.attention = stores; }) ==
          Lines{"0.0 --attention flash", "1.0 --recompute selective", "1.1 --recompute full"});
  CHECK(offered([](Question& q) {
          q.strategy.attention = Attention::eager;
          q.strategy.recompute.kind = RecomputeKind::selective;
        }) == Lines{"0.0 --attention flash", "1.0 --recompute full"});
  CHECK(offered([](Question& q) { q.strategy.recompute.kind = RecomputeKind::full; }) ==
        Lines{"1.0 --offload activations"});
  CHECK(offered([](Question& q) { q.strategy.recompute = {RecomputeKind::every, 2}; }).empty());
  // A frozen base in fp32 is read in 16 bits under autocast, by every GEMM.
  const auto base = [](Precision precision, std::optional<DType> stored, Stack stack) {
    return further([=](Question& q) {
      q.strategy.lora = models::Lora{.targets = {"all-linear"}};
      q.strategy.stack = stack;
      q.strategy.precision = precision;
      q.strategy.param_dtype = stored;
    });
  };
  const Lines narrow{"0.0 --param-dtype bf16"};
  CHECK(base(Precision::bf16_mixed, std::nullopt, Stack::pytorch) == narrow);
  CHECK(base(Precision::bf16_mixed, DType::fp32, Stack::pytorch) == narrow);
  CHECK(base(Precision::bf16_mixed, DType::bf16, Stack::pytorch).empty());
  CHECK(base(Precision::bf16, std::nullopt, Stack::pytorch).empty());
  CHECK(base(Precision::fp32, std::nullopt, Stack::pytorch).empty());
  CHECK(base(Precision::bf16_mixed, std::nullopt, Stack::plimsoll).empty());
}

TEST_CASE(
    "higher stages of ZeRO are offered to several GPUs, and DDP's own options hold them off") {
  const auto stages = [](Stack stack, int zero, std::int64_t gpus, const char* given = "") {
    return further([=](Question& q) {
      sharded(q, stack, zero, gpus);
      q.fixed.push_back("offload");
      q.given = {given};
    });
  };
  const Lines all{"0.0 --zero 1", "0.1 --zero 2", "1.0 --zero 3"};
  CHECK(stages(Stack::pytorch, 0, 8) == all);
  CHECK(stages(Stack::pytorch, 0, 2) == all);
  CHECK(stages(Stack::pytorch, 0, 1).empty());
  CHECK(stages(Stack::pytorch, 1, 8) == Lines{"0.0 --zero 2", "1.0 --zero 3"});
  CHECK(stages(Stack::pytorch, 2, 8) == Lines{"1.0 --zero 3"});
  CHECK(stages(Stack::pytorch, 3, 8).empty());
  for (const char* given : {"bucket-cap-mb", "gradient-as-bucket-view"}) {
    CHECK(stages(Stack::pytorch, 0, 8, given) == Lines{"0.0 --zero 1"});
    CHECK(stages(Stack::deepspeed, 0, 8, given) == all);
  }
}

TEST_CASE("Liger's kernels come with their loss, where Transformers' code runs eagerly") {
  const auto liger = [](const std::function<void(Question&)>& with) {
    return further([&](Question& q) { std::erase(q.fixed, "kernels"), with(q); });
  };
  const Lines them{"0.0 --kernels liger"};
  CHECK(liger([](Question&) {}) == them);
  CHECK(liger([](Question& q) { q.strategy.stack = Stack::deepspeed; }) == them);
  CHECK(liger([](Question& q) { q.strategy.stack = Stack::plimsoll; }).empty());
  CHECK(liger([](Question& q) { q.strategy.kernels = models::Kernels::liger; }).empty());
  CHECK(liger([](Question& q) { q.strategy.code = models::ModelCode::torchtune_0_6_1; }).empty());
  CHECK(liger([](Question& q) { q.given = {"loss"}; }).empty());
  const models::Strategy with =
      after([](Question& q) { std::erase(q.fixed, "kernels"); }, "--kernels liger").strategy;
  CHECK(with.kernels == models::Kernels::liger);
  CHECK(with.loss == Loss::fused);
}

TEST_CASE("more GPUs are the next eight and doublings, sharded in whole") {
  const auto gpus = [](std::int64_t have, int zero, const char* given = "", const char* fix = "") {
    return further([=](Question& q) {
      sharded(q, Stack::pytorch, zero, have);
      q.fixed = {"kernels", "lora-rank",      "optimizer", "precision",
                 "loss",    "optimizer-impl", "offload",   fix};
      if (zero == 0) q.fixed.push_back("recompute");
      q.given = {given};
      if (zero == 0 && have > 1) q.given.push_back("no such option");
    });
  };
  CHECK(gpus(8, 3) == Lines{"2.0 --gpus 16", "2.1 --gpus 32", "2.2 --gpus 64", "2.3 --gpus 128"});
  CHECK(gpus(6, 3) == Lines{"2.0 --gpus 8", "2.1 --gpus 16", "2.2 --gpus 32", "2.3 --gpus 64"});
  CHECK(gpus(1, 0) == Lines{"2.0 --gpus 8 --zero 3", "2.1 --gpus 16 --zero 3",
                            "2.2 --gpus 32 --zero 3", "2.3 --gpus 64 --zero 3"});
  CHECK(gpus(1, 0, "bucket-cap-mb").empty());
  CHECK(gpus(1, 0, "", "zero").empty());
  CHECK(gpus(1, 0, "", "global-batch").empty());
  CHECK(gpus(1, 0, "global-batch").size() == 4);
  // A group of all ranks is told as none; among more ranks it is one.
  const auto grown = [](std::int64_t group, bool given) {
    return after(
               [=](Question& q) {
                 sharded(q, Stack::pytorch, 3);
                 q.strategy.data.shard_group = group;
                 q.fixed = {"offload"};
                 if (given) q.given = {"shard-group"};
               },
               "--gpus 32")
        .strategy;
  };
  CHECK(grown(0, true).data.shard_group == 8);
  CHECK(grown(0, false).data.shard_group == 0);
  CHECK(grown(4, true).data.shard_group == 4);
  CHECK(grown(0, false).gpus == 32);
  CHECK(after([](Question& q) { q.fixed.clear(); }, "--gpus 16 --zero 3").strategy.data.zero == 3);
}

TEST_CASE("a micro-batch is cut into micro-steps, where nothing fixes how many there are") {
  const auto batches = [](std::int64_t micro, std::int64_t accumulated, Lines given,
                          const char* fixed = "") {
    return further([=](Question& q) {
      q.batch.micro_batch = micro;
      q.batch.grad_accum = accumulated;
      q.given = given;
      q.fixed.push_back(fixed);
    });
  };
  CHECK(batches(4, 3, {}) == Lines{"1.0 --micro-batch 1 --grad-accum 12"});
  CHECK(batches(1, 3, {}).empty());
  CHECK(batches(4, 3, {"global-batch"}) == Lines{"1.0 --micro-batch 1"});
  CHECK(batches(4, 3, {"grad-accum"}) == Lines{"1.0 --micro-batch 1 --grad-accum 12"});
  CHECK(batches(4, 3, {"global-batch", "grad-accum"}).empty());
  CHECK(batches(4, 3, {}, "global-batch").empty());
  CHECK(batches(4, 3, {}, "grad-accum").empty());
  CHECK(further([](Question& q) {
          q.batch = {.seq_len = 4096, .micro_batch = 4, .row_tokens = 9000, .row_samples = 4};
        }).empty());  // neither another micro-batch nor another length is known
  const Question cut = after([](Question& q) { q.batch.micro_batch = 4, q.batch.grad_accum = 3; },
                             "--micro-batch 1 --grad-accum 12");
  CHECK(cut.batch.micro_batch == 1);
  CHECK(cut.batch.grad_accum == 12);
}

TEST_CASE("code that accumulates no gradients gives up sequences of its step") {
  const auto asked = [](Question& q) {
    q.strategy.code = models::ModelCode::torchtitan_0_2_2;
    q.strategy.recompute = {.kind = RecomputeKind::ops};
    q.batch.micro_batch = 5;
  };
  CHECK(offered(asked) ==
        Lines{"1.0 --recompute full", "3.0 --micro-batch 2", "3.1 --micro-batch 1"});
  CHECK(after(asked, "--micro-batch 2").batch.micro_batch == 2);
}

TEST_CASE("lengths are halved three times, and to 512 tokens at the least") {
  const auto lengths = [](std::int64_t tokens) {
    return further([=](Question& q) { q.batch.seq_len = tokens; });
  };
  CHECK(lengths(1023).empty());
  CHECK(lengths(1024) == Lines{"3.0 --seq-len 512"});
  CHECK(lengths(3000) == Lines{"3.0 --seq-len 1500", "3.1 --seq-len 750"});
  CHECK(lengths(8192) == Lines{"3.0 --seq-len 4096", "3.1 --seq-len 2048", "3.2 --seq-len 1024"});
}

TEST_CASE("the host takes what the stack's trainers can give it") {
  const auto offload = [](Stack stack, int zero,
                          const std::function<void(models::Strategy&)>& with) {
    Lines lines = further([&](Question& q) {
      sharded(q, stack, zero);
      q.fixed.push_back("zero");
      with(q.strategy);
    });
    return lines;
  };
  const auto plain = [](models::Strategy&) {};
  const Lines params{"1.0 --offload params"}, optimizer{"1.0 --offload optimizer"};
  CHECK(offload(Stack::pytorch, 3, plain) == params);
  CHECK(offload(Stack::pytorch, 2, plain) == params);
  CHECK(offload(Stack::pytorch, 1, plain).empty());
  CHECK(offload(Stack::pytorch, 3, [](auto& s) { s.gpus = 1; }).empty());
  CHECK(offload(Stack::pytorch, 3, [](auto& s) { s.optimizer = Optimizer::lion; }).empty());
  CHECK(offload(Stack::pytorch, 3, [](auto& s) { s.precision = Precision::fp16_mixed; }).empty());
  CHECK(offload(Stack::pytorch, 3, [](auto& s) { s.offload.params = true; }).empty());
  CHECK(offload(Stack::plimsoll, 3, plain).empty());

  CHECK(offload(Stack::deepspeed, 0, plain).empty());
  CHECK(offload(Stack::deepspeed, 1, plain) == optimizer);
  CHECK(offload(Stack::deepspeed, 2, plain) == optimizer);
  CHECK(offload(Stack::deepspeed, 3, plain) ==
        Lines{"1.0 --offload optimizer", "1.1 --offload optimizer,params"});
  CHECK(offload(Stack::deepspeed, 3, [](auto& s) { s.offload.optimizer = true; }) ==
        Lines{"1.0 --offload optimizer,params"});
  CHECK(offload(Stack::deepspeed, 3, [](auto& s) {
          s.offload.optimizer = s.offload.params = true;
        }).empty());
  CHECK(offload(Stack::deepspeed, 2, [](auto& s) { s.optimizer_impl = OptimizerImpl::fused; }) ==
        optimizer);
  CHECK(offload(Stack::deepspeed, 2, [](auto& s) {
          s.optimizer_impl = OptimizerImpl::foreach;
        }).empty());
  CHECK(offload(Stack::deepspeed, 2, [](auto& s) { s.optimizer = Optimizer::sgd; }).empty());
  CHECK(offload(Stack::deepspeed, 2, [](auto& s) { s.precision = Precision::bf16; }).empty());
  CHECK(offload(Stack::deepspeed, 2, [](auto& s) { s.grad_dtype = DType::fp32; }).empty());
  CHECK(offload(Stack::deepspeed, 2, [](auto& s) {
          s.grad_dtype = DType::fp32;
          s.precision = Precision::fp32;
        }) == optimizer);
  const auto moved = [](const char* option) {
    return after([](Question& q) { sharded(q, Stack::deepspeed, 3); }, option).strategy.offload;
  };
  CHECK(moved("--offload optimizer") == models::Offload{.optimizer = true});
  CHECK(moved("--offload optimizer,params") == models::Offload{.optimizer = true, .params = true});
}

TEST_CASE("adapters, 8-bit states and bf16 alone come last") {
  const auto late = [](const std::function<void(models::Strategy&)>& with) {
    return further([&](Question& q) {
      q.fixed = {"kernels", "gpus", "loss", "optimizer-impl", "attention"};
      with(q.strategy);
    });
  };
  const std::string lora = "4.0 --lora-rank 16 --lora-targets all-linear";
  const std::string bits = "5.0 --optimizer adam8bit", pure = "5.0 --precision bf16";
  CHECK(late([](auto& s) { s.precision = Precision::bf16; }) == Lines{lora, bits});
  CHECK(late([](auto& s) { s.precision = Precision::fp32; }) == Lines{lora, bits, pure});
  CHECK(late([](auto& s) { s.precision = Precision::fp16_mixed; }) ==
        Lines{lora + " --param-dtype bf16", bits});
  CHECK(late([](auto& s) { s.stack = Stack::plimsoll; }) == Lines{lora, bits, pure});
  CHECK(late([](auto& s) { s.freeze = {"*embed*"}; }) == Lines{bits, pure});
  CHECK(late([](auto& s) { s.train = {"*embed*"}; }) == Lines{bits, pure});
  CHECK(late([](auto& s) { s.optimizer = Optimizer::adam8bit, s.freeze = {"*embed*"}; }) ==
        Lines{pure});
  const auto both = [](auto& s) {
    s.freeze = {"*embed*"};
    s.param_dtype = DType::fp32;
    s.optimizer = Optimizer::sgd;  // has no states
  };
  CHECK(late(both) == Lines{pure + " --param-dtype bf16"});
  const models::Strategy narrow = after([&](Question& q) { q.fixed.clear(), both(q.strategy); },
                                        "--precision bf16 --param-dtype bf16")
                                      .strategy;
  CHECK(narrow.precision == Precision::bf16);
  CHECK(narrow.param_dtype == DType::bf16);
  const models::Strategy adapted =
      after([](Question& q) { q.fixed.clear(); },
            "--lora-rank 16 --lora-targets all-linear --param-dtype bf16")
          .strategy;
  REQUIRE(adapted.lora.has_value());
  CHECK(adapted.lora->rank == 16);
  CHECK(adapted.lora->targets == std::vector<std::string>{"all-linear"});
  CHECK(adapted.param_dtype == DType::bf16);
}

TEST_CASE("changes of one option cannot be joined; what is given up is said") {
  const auto change = [](const char* option) { return Change{.option = option}; };
  CHECK(planner::share_an_option(change("--gpus 8 --zero 3"), change("--zero 2")));
  CHECK(planner::share_an_option(change("--zero 2"), change("--gpus 8 --zero 3")));
  CHECK_FALSE(planner::share_an_option(change("--gpus 8 --zero 3"), change("--seq-len 512")));
  CHECK_FALSE(
      planner::share_an_option(change("--optimizer adam8bit"), change("--optimizer-impl fused")));
  const auto conceded = [](Stack stack, const std::string& option) {
    const Asked asked([&](Question& q) {
      q.fixed.clear();
      q.strategy.stack = stack;
      q.strategy.attention = Attention::eager;
    });
    for (const Change& c : planner::changes_for(asked.q))
      if (c.option == option) return c.concession;
    return std::string("not offered");
  };
  // Our own runtime has them; Transformers' Trainer needs code.
  CHECK(conceded(Stack::plimsoll, "--loss fused") == "");
  CHECK(conceded(Stack::pytorch, "--loss fused").starts_with("fused loss: no option"));
  CHECK(conceded(Stack::plimsoll, "--recompute selective") == "");
  CHECK(conceded(Stack::deepspeed, "--recompute selective")
            .starts_with("selective recomputation: no option"));
}

TEST_CASE("a global batch is shared out anew, or not at all") {
  const auto settled = [](std::int64_t micro, std::int64_t gpus, bool given) {
    Question before, changed;
    before.strategy.gpus = 4;
    before.batch = {.micro_batch = 3, .grad_accum = 2};  // 24 sequences
    if (given) before.given = {"global-batch"};
    changed = before;
    changed.strategy.gpus = gpus;
    changed.batch.micro_batch = micro;
    return planner::settle(before, changed) ? changed.batch.grad_accum : -1;
  };
  CHECK(settled(3, 4, true) == 2);
  CHECK(settled(1, 4, true) == 6);
  CHECK(settled(1, 8, true) == 3);
  CHECK(settled(3, 8, true) == 1);
  CHECK(settled(1, 16, true) == -1);
  CHECK(settled(3, 16, true) == -1);
  CHECK(settled(1, 16, false) == 2);
}
