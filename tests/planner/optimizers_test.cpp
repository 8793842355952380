// What optimizers keep of a parameter, by hand; whole steps are held against the real packages in
// dry_runs_test.cpp.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "models/model_catalog.h"
#include "models/optimizer_states.h"
#include "planner/plan.h"

using namespace plimsoll;
using models::Optimizer;
using models::SteppedTensor;

namespace {

std::string kept(Optimizer kind, const SteppedTensor& tensor) {
  std::string out;
  const models::Strategy strategy{.optimizer = kind};
  for (const models::KeptState& state : models::kept_states(strategy, tensor))
    out += std::string(state.name) + (state.managed ? " managed " : " ") +
           std::to_string(state.bytes.value()) + "; ";
  return out;
}

planner::Question question(const char* model, models::Strategy strategy) {
  static std::vector<models::ModelSpec> kept;
  kept.reserve(8);
  planner::Question q;
  q.model = &kept.emplace_back(models::catalog_model(model));
  q.strategy = strategy;
  q.batch = {.seq_len = 128};
  return q;
}

std::string refusal(const char* model, Optimizer optimizer,
                    const std::function<void(models::Strategy&)>& with) {
  models::Strategy s;
  s.optimizer = optimizer;
  with(s);
  try {
    planner::plan(question(model, s));
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("states in 8 bits are a byte a value and four for each block of 256, begun ones too") {
  // 4097 values: 17 blocks.
  CHECK(kept(Optimizer::adam8bit, {.elements = 4097}) ==
        "exp_avg 4097; exp_avg_sq 4097; exp_avg.absmax 68; exp_avg_sq.absmax 68; ");
  // bf16 parameters have them in 8 bits, or fp32, all the same.
  CHECK(kept(Optimizer::adam8bit, {.elements = 4096, .dtype = DType::bf16}) ==
        "exp_avg 4096; exp_avg_sq 4096; exp_avg.absmax 64; exp_avg_sq.absmax 64; ");
  CHECK(kept(Optimizer::adam8bit, {.elements = 4095, .dtype = DType::bf16}) ==
        "exp_avg 16380; exp_avg_sq 16380; ");
  CHECK(kept(Optimizer::adam8bit, {.elements = 0}) == "");
}

TEST_CASE("an embedding's states are in fp32, as the Trainer asks") {
  CHECK(kept(Optimizer::adam8bit, {.elements = 8192, .embedding = true}) ==
        "exp_avg 32768; exp_avg_sq 32768; ");
}

TEST_CASE("paged states are in managed memory from 100,000 elements on, their scales never") {
  // 100,000 / 256 = 390.6: 391 blocks.
  CHECK(kept(Optimizer::paged_adam8bit, {.elements = 100'000}) ==
        "exp_avg managed 100000; exp_avg_sq managed 100000; exp_avg.absmax 1564; "
        "exp_avg_sq.absmax 1564; ");
  CHECK(kept(Optimizer::paged_adamw, {.elements = 99'999}) ==
        "exp_avg 399996; exp_avg_sq 399996; ");
}

TEST_CASE("AdEMAMix keeps two averages in one tensor") {
  CHECK(kept(Optimizer::ademamix8bit, {.elements = 4096}) ==
        "exp_avg 8192; exp_avg_sq 4096; exp_avg.absmax 128; exp_avg_sq.absmax 64; ");
}

TEST_CASE("Adafactor keeps rows and columns of matrices, stacked ones too, and whole vectors") {
  const SteppedTensor matrix{.elements = 15, .dtype = DType::bf16, .rows = 3, .columns = 5};
  CHECK(kept(Optimizer::adafactor, matrix) == "exp_avg_sq_row 12; exp_avg_sq_col 20; RMS 4; ");
  const SteppedTensor stack{.elements = 30, .rows = 3, .columns = 5};
  CHECK(kept(Optimizer::adafactor, stack) == "exp_avg_sq_row 24; exp_avg_sq_col 40; RMS 4; ");
  CHECK(kept(Optimizer::adafactor, {.elements = 7, .dtype = DType::bf16}) ==
        "exp_avg_sq 28; RMS 4; ");
}

TEST_CASE("Muon steps the matrices of layers in their dtype, AdamW what is none of those") {
  SteppedTensor tensor{.elements = 15, .dtype = DType::bf16, .rows = 3, .columns = 5};
  CHECK(kept(Optimizer::muon, tensor) == "momentum_buffer 30; ");
  tensor.hidden = false;
  CHECK(kept(Optimizer::muon, tensor) == "exp_avg 30; exp_avg_sq 30; ");
  CHECK(kept(Optimizer::muon, {.elements = 30, .rows = 3, .columns = 5}) ==
        "exp_avg 120; exp_avg_sq 120; ");  // three axes
  CHECK(kept(Optimizer::muon, {.elements = 5}) == "exp_avg 20; exp_avg_sq 20; ");
}

TEST_CASE("GaLore keeps states of rank r and a basis: a cut of 16 bits, of fp32 the whole one") {
  // Shapes of galore_torch's own tensors: a 512 by 320 gradient, projected from the right.
  const auto matrix = [](DType dtype, std::int64_t rank) {
    return SteppedTensor{
        .elements = 512 * 320, .dtype = dtype, .rows = 512, .columns = 320, .rank = rank};
  };
  CHECK(kept(Optimizer::galore, matrix(DType::bf16, 64)) ==
        "projector 40960; exp_avg 65536; exp_avg_sq 65536; ");
  CHECK(kept(Optimizer::galore, matrix(DType::fp32, 64)) ==
        "projector 409600; exp_avg 131072; exp_avg_sq 131072; ");
  CHECK(kept(Optimizer::galore8bit, matrix(DType::bf16, 64)) ==
        "projector 40960; exp_avg 32768; exp_avg_sq 32768; unorm_vec 4; exp_avg.absmax 512; "
        "exp_avg_sq.absmax 512; ");
  // Below 4,096 projected values they are in fp32; what is not projected is AdamW's.
  CHECK(kept(Optimizer::galore8bit, matrix(DType::bf16, 7)) ==
        "projector 4480; exp_avg 14336; exp_avg_sq 14336; unorm_vec 4; ");
  CHECK(kept(Optimizer::galore, {.elements = 8192, .dtype = DType::bf16, .embedding = true}) ==
        "exp_avg 16384; exp_avg_sq 16384; ");
  models::Strategy s;
  s.optimizer = Optimizer::galore;
  CHECK(models::rank_of(s, matrix(DType::bf16, 0)) == 128);
  s.galore_rank = 1024;
  CHECK(models::rank_of(s, matrix(DType::bf16, 0)) == 320);
  CHECK(models::rank_of(s, {.elements = 512}) == 0);
}

TEST_CASE("torchao's states are in whole blocks alone, each with a map, embeddings too") {
  // 8192 values: 32 scales of 4 bytes; a map of 256 or 16 fp32 values for each state.
  CHECK(kept(Optimizer::torchao_adam8bit, {.elements = 8192, .embedding = true}) ==
        "exp_avg 8192; exp_avg_sq 8192; exp_avg.absmax 128; exp_avg.qmap 1024; "
        "exp_avg_sq.absmax 128; exp_avg_sq.qmap 1024; ");
  CHECK(kept(Optimizer::torchao_adam4bit, {.elements = 8192, .dtype = DType::bf16}) ==
        "exp_avg 4096; exp_avg_sq 4096; exp_avg.absmax 128; exp_avg.qmap 64; "
        "exp_avg_sq.absmax 128; exp_avg_sq.qmap 64; ");
  CHECK(kept(Optimizer::torchao_adamfp8, {.elements = 4096}) ==
        "exp_avg 4096; exp_avg_sq 4096; exp_avg.absmax 64; exp_avg_sq.absmax 64; ");
  // A begun block, or few values: as the parameter is.
  CHECK(kept(Optimizer::torchao_adam8bit, {.elements = 8193, .dtype = DType::bf16}) ==
        "exp_avg 16386; exp_avg_sq 16386; ");
  CHECK(kept(Optimizer::torchao_adam8bit, {.elements = 3840}) ==
        "exp_avg 15360; exp_avg_sq 15360; ");
}

TEST_CASE("schedule-free keeps z in place of the first moment, SGD's z alone") {
  const SteppedTensor tensor{.elements = 10, .dtype = DType::bf16};
  CHECK(kept(Optimizer::schedule_free_adamw, tensor) == "z 20; exp_avg_sq 20; ");
  CHECK(kept(Optimizer::schedule_free_radam, tensor) == "z 20; exp_avg_sq 20; ");
  CHECK(kept(Optimizer::schedule_free_sgd, tensor) == "z 20; ");
}

TEST_CASE("APOLLO keeps a random basis and moments of rank r, its mini of one") {
  SteppedTensor matrix{
      .elements = 512 * 320, .dtype = DType::bf16, .rows = 512, .columns = 320, .rank = 64};
  CHECK(kept(Optimizer::apollo, matrix) ==
        "projector 40960; exp_avg 65536; exp_avg_sq 65536; scaled_grad 2; ");
  models::Strategy s;
  s.optimizer = Optimizer::apollo;
  CHECK(models::rank_of(s, matrix) == 128);
  s.optimizer = Optimizer::apollo_mini;
  CHECK(models::rank_of(s, matrix) == 1);
  matrix.rank = 1;
  CHECK(kept(Optimizer::apollo_mini, matrix) ==
        "projector 640; exp_avg 1024; exp_avg_sq 1024; scaled_grad 2; ");
}

TEST_CASE("Adam-mini keeps one second moment for each row; StableAdamW Kahan's for 16 bits") {
  CHECK(kept(Optimizer::adam_mini, {.elements = 15, .rows = 3, .columns = 5}) ==
        "exp_avg 60; vmean 12; ");
  CHECK(kept(Optimizer::adam_mini, {.elements = 5}) == "exp_avg 20; vmean 4; ");
  // eps_sq is one value of the parameter's dtype, mean_square one of fp32.
  CHECK(kept(Optimizer::stable_adamw, {.elements = 5, .dtype = DType::bf16}) ==
        "exp_avg 10; exp_avg_sq 10; eps_sq 2; kahan_comp 10; mean_square 4; ");
  CHECK(kept(Optimizer::stable_adamw, {.elements = 5}) ==
        "exp_avg 20; exp_avg_sq 20; eps_sq 4; kahan_comp 1; mean_square 4; ");
}

TEST_CASE("RMSprop and Adagrad keep one sum, bitsandbytes' RMSprop one in 8 bits") {
  CHECK(kept(Optimizer::rmsprop, {.elements = 5, .dtype = DType::bf16}) == "square_avg 10; ");
  CHECK(kept(Optimizer::adagrad, {.elements = 5}) == "sum 20; ");
  CHECK(kept(Optimizer::rmsprop8bit, {.elements = 4096}) ==
        "square_avg 4096; square_avg.absmax 64; ");
  CHECK(kept(Optimizer::rmsprop_bnb, {.elements = 5, .dtype = DType::bf16}) == "square_avg 20; ");
}

TEST_CASE("what a package does not step is refused with its reason") {
  const auto fsdp2 = [](models::Strategy& s) { s.gpus = 8, s.data.zero = 3; };
  CHECK(refusal("gpt2", Optimizer::adam8bit, fsdp2).find("steps no DTensor") != std::string::npos);
  CHECK(refusal("gpt2", Optimizer::adafactor, fsdp2).find("mixed torch.Tensor and DTensor") !=
        std::string::npos);
  CHECK(refusal("gpt2", Optimizer::adam8bit, [](models::Strategy& s) {
          s.gpus = 8, s.data.zero = 1;
        }).starts_with("--optimizer adam8bit with --zero 1: ZeroRedundancyOptimizer"));
  CHECK(refusal("gpt2", Optimizer::adam8bit,
                [](models::Strategy& s) { s.optimizer_impl = models::OptimizerImpl::fused; }) ==
        "--optimizer-impl fused: bitsandbytes steps --optimizer adam8bit, which has one form");
  CHECK(refusal("gpt2", Optimizer::torchao_adam8bit,
                [](models::Strategy& s) { s.stack = models::Stack::deepspeed; }) ==
        "--optimizer torchao-adam8bit with --stack deepspeed: is not modelled yet; it is modelled "
        "with --stack pytorch");
  CHECK(refusal("gpt2", Optimizer::paged_adam8bit,
                [](models::Strategy& s) { s.stack = models::Stack::plimsoll; }) ==
        "--optimizer paged-adam8bit with --stack plimsoll: is not modelled yet; it is modelled "
        "with --stack pytorch, deepspeed");
  CHECK(refusal("gpt2", Optimizer::adam8bit, [](models::Strategy& s) {
          s.gpus = 8, s.data.zero = 3, s.data.fsdp_version = 1;
        }) == "");
  CHECK(refusal("gpt2", Optimizer::schedule_free_adamw, [](models::Strategy& s) {
          s.optimizer_impl = models::OptimizerImpl::fused;
        }) == "--optimizer-impl fused: schedulefree's optimizers have foreach and for-loop");
  CHECK(refusal("gpt2", Optimizer::adam_mini,
                [](models::Strategy& s) { s.optimizer_in_backward = true; }) ==
        "--optimizer-in-backward is modelled with all optimizers but adafactor, muon, adam-mini "
        "and grokadamw");
  const auto in_bf16 = [](models::Strategy& s) { s.precision = models::Precision::bf16; };
  CHECK(refusal("gpt2", Optimizer::rmsprop8bit, in_bf16)
            .starts_with("--optimizer rmsprop8bit with parameters in bf16: bitsandbytes 0.50.2"));
  CHECK(refusal("gpt2", Optimizer::rmsprop, in_bf16) == "");
  CHECK(refusal("gpt2", Optimizer::apollo, fsdp2).find("FSDP2's are sharded") != std::string::npos);
  CHECK(refusal("gpt2", Optimizer::torchao_adam8bit, fsdp2) == "");
  // Only counts are known of a family without a step program.
  CHECK(refusal("t5-small", Optimizer::adafactor, [](models::Strategy&) {
        }).starts_with("--optimizer adafactor is planned where the model's step is"));
}

TEST_CASE("LOMO steps in the backward, on one GPU, and every parameter") {
  const auto behind = [](const char* model, const std::function<void(models::Strategy&)>& change) {
    return refusal(model, Optimizer::adalomo, [&](models::Strategy& s) {
      s.optimizer_in_backward = true;
      change(s);
    });
  };
  CHECK(refusal("gpt2", Optimizer::lomo, [](models::Strategy&) {}) ==
        "--optimizer lomo steps in the backward: strategy.optimizer_in_backward says no");
  CHECK(behind("gpt2", [](models::Strategy&) {}) == "");
  CHECK(behind("gpt2", [](models::Strategy& s) { s.gpus = 2; }) ==
        "--optimizer-in-backward is modelled on one GPU");
  CHECK(behind("gpt2", [](models::Strategy& s) { s.freeze = {"*wte*"}; }) ==
        "--optimizer adalomo with frozen parameters is not modelled yet");
  CHECK(behind("mixtral-8x7b", [](models::Strategy&) {}) ==
        "--optimizer adalomo with experts that are stacked in one parameter is not modelled yet");
  CHECK(behind("olmo-2-7b", [](models::Strategy&) {
        }).starts_with("--optimizer adalomo is not modelled for olmo2: what waits"));
  CHECK(kept(Optimizer::lomo, {.elements = 15, .rows = 3, .columns = 5}) == "");
  CHECK(kept(Optimizer::adalomo, {.elements = 15, .dtype = DType::bf16, .rows = 3, .columns = 5}) ==
        "exp_avg_sq_row 12; exp_avg_sq_col 20; ");
}

TEST_CASE("GrokAdamW's states are the host's, and one parameter's at a time are on the GPU") {
  models::Strategy s;
  s.optimizer = Optimizer::grokadamw;
  const reports::Plan plan = planner::plan(question("gpt2", s));
  CHECK(plan.host_pageable == Bytes(3 * 4 * 124'439'808LL));
  CHECK(plan.states.optimizer == Bytes(0));
  models::Strategy adam;
  CHECK(planner::plan(question("gpt2", adam)).states.optimizer > 900_MiB);
}

TEST_CASE("managed memory stands in the plan, beside the device's bytes") {
  models::Strategy s;
  s.optimizer = Optimizer::paged_adamw;
  const reports::Plan paged = planner::plan(question("gpt2", s));
  CHECK(paged.host_pageable > 850_MiB);  // 8 bytes of nearly all of 124.4 million parameters
  CHECK(paged.host_pageable + paged.states.optimizer >= Bytes(8 * 124'439'808));
  CHECK(paged.states.optimizer < 10_MiB);
}
