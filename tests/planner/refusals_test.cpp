// What stack pytorch refuses, and where each refusal ends: a row for what is refused, beside the
// nearest question that is not. Of DoRA and vectors: dora_test.cpp, adapters_test.cpp; of
// optimizers: optimizers_test.cpp.
#include <tuple>

#include "tests/planner/refusal_rows.h"

using namespace plimsoll;
using models::Attention;
using models::Kernels;
using models::Loss;
using models::ModelCode;
using models::Precision;
using models::RecomputeKind;
using models::Release;
using models::Rows;
using tests::check_refusals;
using tests::kNothing;
using tests::pack_base;
using tests::Refusable;
using tests::refusal_of;
using tests::shard_by_fsdp;

namespace {

void keep(Refusable& a, const char* what) {
  a.s.recompute = {.kind = RecomputeKind::ops, .kept = {what}};
}

}  // namespace

TEST_CASE("a family is planned from the oldest release that it was compared with, and no older") {
  const auto of = [](const char* model, Release release) {
    Refusable a;
    a.model = model;
    a.s.transformers = release;
    return refusal_of(a);
  };
  const auto from = [&](const char* model, Release oldest, Release older) {
    CAPTURE(model);
    CHECK(of(model, oldest) == kNothing);
    CHECK(of(model, older).find("are modelled from " + models::text_of(oldest) + " on") !=
          std::string::npos);
  };
  for (const char* model : {"llama-2-7b", "mistral-7b-v0.1", "granite-3.0-2b"})
    from(model, {4, 45, 0}, {4, 44, 9});
  from("gpt2", {4, 51, 0}, {4, 50, 9});
  from("qwen3-4b", {4, 51, 0}, {4, 50, 9});
  from("qwen2.5-7b", {4, 56, 0}, {4, 55, 9});
  for (const char* model : {"mixtral-8x7b", "qwen3-30b-a3b"}) from(model, {4, 48, 0}, {4, 47, 9});
  for (const char* model : {"gemma-2b", "olmo-2-7b", "phi-2", "santacoder"})
    from(model, {5, 17, 0}, {5, 16, 9});
  // GPT-BigCode's SDPA read another mask then; flash_attn none.
  Refusable a{.model = "santacoder"};
  a.s.attention = Attention::flash_2;
  a.s.transformers = {4, 45, 0};
  CHECK(refusal_of(a) == kNothing);
  a.s.transformers = {4, 49, 0};
  CHECK(refusal_of(a).find("are modelled from 5.17") != std::string::npos);
}

TEST_CASE("losses, kernels and masters have releases and settings of their own") {
  const auto release = [](Refusable& a, Release of) { a.s.transformers = of; };
  check_refusals({
      {kNothing,
       [&](Refusable& a) {
         release(a, {4, 49, 0}), a.s.loss = Loss::chunked;
       }},
      {"--transformers-version 4.48.9 is modelled with --loss full only",
       [&](Refusable& a) {
         release(a, {4, 48, 9}), a.s.loss = Loss::chunked;
       }},
      {"--transformers-version 4.48.9 is modelled with --loss full only",
       [&](Refusable& a) {
         release(a, {4, 48, 9}), a.s.loss = Loss::fused;
       }},
      {kNothing,
       [&](Refusable& a) {
         release(a, {4, 48, 9});
       }},
      {kNothing,
       [&](Refusable& a) {
         release(a, {5, 0, 0}), a.s.kernels = Kernels::liger;
       }},
      {"--transformers-version 4.57.0: Liger's kernels are modelled with 5.0",
       [&](Refusable& a) {
         release(a, {4, 57, 0}), a.s.kernels = Kernels::liger;
       }},
      // fms-acceleration's loss comes with its kernels, with any release.
      {kNothing,
       [&](Refusable& a) {
         release(a, {4, 45, 0}), a.s.kernels = Kernels::fused, a.s.loss = Loss::fused;
       }},
      {"--kernels fused: fms-acceleration has a full and a fused loss",
       [](Refusable& a) { a.s.kernels = Kernels::fused, a.s.loss = Loss::chunked; }},
      {kNothing, [](Refusable& a) { a.s.kernels = Kernels::fused; }},
      // Its norms make no gradients of weights, for which DDP would wait.
      {"--kernels fused: these norms make no gradients",
       [](Refusable& a) { a.s.kernels = Kernels::fused, a.s.gpus = 2; }},
      {"--kernels fused: these norms make no gradients",
       [](Refusable& a) { shard_by_fsdp(a, 2, 1), a.s.kernels = Kernels::fused; }},
      {kNothing, [](Refusable& a) { shard_by_fsdp(a, 2, 2), a.s.kernels = Kernels::fused; }},
      {kNothing,
       [](Refusable& a) {
         a.s.kernels = Kernels::fused, a.s.gpus = 2, a.s.lora = models::Lora{.targets = {"q_proj"}};
       }},
      {"--kernels fused: fms-acceleration replaces the loss in GPT-BigCode's own code",
       [](Refusable& a) {
         a.model = "santacoder", a.s.kernels = Kernels::fused;
         a.s.attention = Attention::flash_2;
       }},
      {kNothing,
       [&](Refusable& a) {
         a.model = "santacoder", a.s.kernels = Kernels::fused, release(a, {4, 48, 0});
         a.s.attention = Attention::flash_2;
       }},
      {"--device cpu is for --stack plimsoll",
       [](Refusable& a) { a.s.device = models::Device::cpu; }},
      {"--master-weights yes: PyTorch's optimizers keep no separate masters",
       [](Refusable& a) { a.s.master_weights = true; }},
      {kNothing, [](Refusable& a) { a.s.master_weights = false; }},
  });
}

TEST_CASE("FSDP1, reentrant checkpoints and tables that FSDP2 casts") {
  check_refusals({
      {"--fsdp-version 1 of one rank (NO_SHARD)",
       [](Refusable& a) { shard_by_fsdp(a, 1), a.s.gpus = 1; }},
      {"--fsdp-version 1 with --freeze or --train",
       [](Refusable& a) { shard_by_fsdp(a, 1), a.s.freeze = {"*embed*"}; }},
      {"--fsdp-version 1 with --freeze or --train",
       [](Refusable& a) { shard_by_fsdp(a, 1), a.s.train = {"*norm*"}; }},
      {"--fsdp-version 1 with checkpoints of several layers",
       [](Refusable& a) {
         shard_by_fsdp(a, 1), a.s.recompute = {RecomputeKind::every, 2};
       }},
      {"--fsdp-version 1 with checkpoints of several layers",
       [](Refusable& a) { shard_by_fsdp(a, 1), a.s.recompute.kind = RecomputeKind::sqrt; }},
      {kNothing,
       [](Refusable& a) { shard_by_fsdp(a, 1), a.s.recompute.kind = RecomputeKind::full; }},
      {"--fsdp-use-orig-params no is modelled with --optimizer adamw, sgd or momentum",
       [](Refusable& a) {
         shard_by_fsdp(a, 1), a.s.data.use_orig_params = false;
         a.s.optimizer = models::Optimizer::adam8bit;
       }},
      {"--use-reentrant yes with FSDP2",
       [](Refusable& a) {
         shard_by_fsdp(a, 2, 2), a.s.recompute.kind = RecomputeKind::full, a.s.use_reentrant = true;
       }},
      {kNothing,
       [](Refusable& a) {
         shard_by_fsdp(a, 1), a.s.recompute.kind = RecomputeKind::full, a.s.use_reentrant = true;
       }},
      {kNothing,
       [](Refusable& a) {
         shard_by_fsdp(a, 2, 1), a.s.recompute.kind = RecomputeKind::full, a.s.use_reentrant = true;
       }},
  });
  // OLMo 2's rotary tables are in fp32.
  const auto olmo = [](Refusable& a) { a.model = "olmo-2-7b"; };
  check_refusals(
      {
          {"--recompute with olmo2 under FSDP2 in mixed precision",
           [](Refusable& a) { shard_by_fsdp(a), a.s.recompute.kind = RecomputeKind::full; }},
          {"--recompute with olmo2 under FSDP2 in mixed precision",
           [](Refusable& a) { shard_by_fsdp(a, 2, 2), a.s.recompute.kind = RecomputeKind::full; }},
          {kNothing,
           [](Refusable& a) { shard_by_fsdp(a, 2, 1), a.s.recompute.kind = RecomputeKind::full; }},
          {kNothing,
           [](Refusable& a) { shard_by_fsdp(a, 1), a.s.recompute.kind = RecomputeKind::full; }},
          {kNothing,
           [](Refusable& a) {
             shard_by_fsdp(a), a.s.recompute.kind = RecomputeKind::full,
                               a.s.precision = Precision::bf16;
           }},
          {kNothing, [](Refusable& a) { shard_by_fsdp(a); }},
      },
      olmo);
}

TEST_CASE("checkpoints by operator need what they were compared with") {
  check_refusals({
      {kNothing, [](Refusable& a) { keep(a, "attention"); }},
      {"--recompute ops:attention with --use-reentrant yes",
       [](Refusable& a) { keep(a, "attention"), a.s.use_reentrant = true; }},
      {kNothing, [](Refusable& a) { keep(a, "attention"), a.s.use_reentrant = false; }},
      {"--recompute ops:attention is modelled with Transformers 5.0 and later",
       [](Refusable& a) {
         keep(a, "attention"), a.s.transformers = {4, 57, 0};
       }},
      {kNothing,
       [](Refusable& a) {
         keep(a, "attention"), a.s.transformers = {5, 0, 0};
       }},
      {"--recompute ops:attention with --fsdp-version 1",
       [](Refusable& a) { keep(a, "attention"), shard_by_fsdp(a, 1); }},
      {"--recompute ops:o_proj is modelled with --kernels eager alone",
       [](Refusable& a) { keep(a, "o_proj"), a.s.kernels = Kernels::liger; }},
      {"--recompute ops:o_proj with --quantize",
       [](Refusable& a) { pack_base(a, "nf4"), keep(a, "o_proj"); }},
      {"--recompute ops:attention keeps attention's result with --attention flash",
       [](Refusable& a) { keep(a, "attention"), a.s.attention = Attention::eager; }},
      {kNothing, [](Refusable& a) { keep(a, "o_proj"), a.s.attention = Attention::eager; }},
      // Grouped queries in fp32 run SDPA's math; as many keys as queries do not.
      {"--recompute ops:attention keeps nothing of attention",
       [](Refusable& a) {
         a.model = "llama-3-8b", keep(a, "attention"), a.s.precision = Precision::fp32;
       }},
      {kNothing, [](Refusable& a) { keep(a, "attention"), a.s.precision = Precision::fp32; }},
      {kNothing, [](Refusable& a) { a.model = "llama-3-8b", keep(a, "attention"); }},
      {kNothing,
       [](Refusable& a) {
         a.model = "llama-3-8b", keep(a, "o_proj"), a.s.precision = Precision::fp32;
       }},
      {"--recompute ops:o_proj is not modelled yet for models with experts",
       [](Refusable& a) { a.model = "mixtral-8x7b", keep(a, "o_proj"); }},
      {"--recompute ops:torchtitan is modelled with torchtitan's own model alone",
       [](Refusable& a) { keep(a, "torchtitan"); }},
  });
}

TEST_CASE("compiled layers: what was held against the real partitioner, and nothing else") {
  const auto block = [](Refusable& a) { a.s.compile = models::Compile::block; };
  check_refusals(
      {
          {kNothing, [](Refusable&) {}},
          {"--compile model (block is)",
           [](Refusable& a) { a.s.compile = models::Compile::model; }},
          {"--compile with adapters",
           [](Refusable& a) { a.s.lora = models::Lora{.targets = {"q_proj"}}; }},
          {"--compile with adapters", [](Refusable& a) { pack_base(a, "nf4"), a.s.lora.reset(); }},
          {"--compile with adapters", [](Refusable& a) { a.s.freeze = {"*embed*"}; }},
          {"--compile with adapters", [](Refusable& a) { a.s.train = {"*embed*"}; }},
          {"--compile with --kernels other than eager",
           [](Refusable& a) { a.s.kernels = Kernels::liger; }},
          {"--compile with --attention other than flash",
           [](Refusable& a) { a.s.attention = Attention::flash_2; }},
          {"--compile with rows that hold padding", [](Refusable& a) { a.s.rows = Rows::padded; }},
          {"--compile in fp16", [](Refusable& a) { a.s.precision = Precision::fp16_mixed; }},
          {"--compile in fp16", [](Refusable& a) { a.s.precision = Precision::fp16; }},
          {"--compile under DDP", [](Refusable& a) { a.s.gpus = 2; }},
          {"--compile under DDP", [](Refusable& a) { shard_by_fsdp(a, 2, 1); }},
          {kNothing, [](Refusable& a) { shard_by_fsdp(a, 2, 2); }},
          {"--compile with --fsdp-version 1", [](Refusable& a) { shard_by_fsdp(a, 1); }},
          {"--compile with --offload",
           [](Refusable& a) { shard_by_fsdp(a), a.s.offload.params = true; }},
          {"--compile with --optimizer-in-backward",
           [](Refusable& a) { a.s.optimizer_in_backward = true; }},
          {"--compile with --use-reentrant yes", [](Refusable& a) { a.s.use_reentrant = true; }},
          {"--compile with Transformers before 5.0",
           [](Refusable& a) {
             a.s.transformers = {4, 57, 0};
           }},
          {kNothing,
           [](Refusable& a) {
             a.s.transformers = {5, 0, 0};
           }},
          {kNothing, [](Refusable& a) { a.s.recompute.kind = RecomputeKind::full; }},
          {"--compile with --recompute other than none",
           [](Refusable& a) { a.s.recompute.kind = RecomputeKind::selective; }},
          {"--compile in fp32 with grouped queries",
           [](Refusable& a) { a.model = "llama-3-8b", a.s.precision = Precision::fp32; }},
          {kNothing, [](Refusable& a) { a.s.precision = Precision::fp32; }},
          {kNothing, [](Refusable& a) { a.model = "llama-3-8b"; }},
          {"--compile: compiled layers of phi are not modelled yet",
           [](Refusable& a) { a.model = "phi-2"; }},
          // Mistral's window of 4,096 hides nothing of a sequence that is shorter.
          {"--compile with a sliding window that the sequence reaches",
           [](Refusable& a) { a.model = "mistral-7b-v0.1"; }},
          {kNothing, [](Refusable& a) { a.model = "mistral-7b-v0.1", a.batch.seq_len = 4095; }},
      },
      block);
}

TEST_CASE("rows with padding or several samples: where their masks were seen") {
  const auto padded = [](Refusable& a) { a.s.rows = Rows::padded; };
  check_refusals(
      {
          {kNothing, [](Refusable&) {}},
          {kNothing, [](Refusable& a) { a.s.rows = Rows::flattened; }},
          {"--padding-mask yes is not of torchtitan",
           [](Refusable& a) { a.s.code = ModelCode::torchtitan_0_2_2; }},
          {"--padding-mask yes is not modelled yet with torchtune's code",
           [](Refusable& a) { a.s.code = ModelCode::torchtune_0_6_1; }},
          {"--padding-mask yes is modelled with Transformers 5.17.0 alone",
           [](Refusable& a) {
             a.s.transformers = {5, 18, 0};
           }},
          {"--padding-mask yes with --attention math",
           [](Refusable& a) { a.s.attention = Attention::math; }},
          {"--padding-mask yes with --attention flash-1",
           [](Refusable& a) { a.s.attention = Attention::flash_1; }},
          {"--padding-mask yes with --attention flash-2 --recompute selective",
           [](Refusable& a) {
             a.s.attention = Attention::flash_2, a.s.recompute.kind = RecomputeKind::selective;
           }},
          {kNothing, [](Refusable& a) { a.s.attention = Attention::flash_2; }},
          {kNothing, [](Refusable& a) { a.s.recompute.kind = RecomputeKind::selective; }},
          {"--padding-mask yes is not modelled yet for bloom",
           [](Refusable& a) { a.model = "bloom-560m"; }},
          {"--padding-mask yes with --kernels liger and --lora-rank",
           [](Refusable& a) {
             a.s.kernels = Kernels::liger, a.s.lora = models::Lora{.targets = {"q_proj"}};
           }},
          {kNothing, [](Refusable& a) { a.s.kernels = Kernels::liger; }},
          {kNothing, [](Refusable& a) { a.s.lora = models::Lora{.targets = {"q_proj"}}; }},
          {kNothing,
           [](Refusable& a) {
             a.s.rows = Rows::flattened, a.s.kernels = Kernels::liger,
             a.s.lora = models::Lora{.targets = {"q_proj"}};
           }},
      },
      padded);
  // Heads that do not stand side by side are copied for flash_attn's packed kernels.
  for (const auto& [model, rows, refused] :
       std::vector<std::tuple<const char*, Rows, bool>>{{"phi-2", Rows::padded, true},
                                                        {"phi-3-mini-4k", Rows::padded, true},
                                                        {"pythia-70m", Rows::padded, true},
                                                        {"gpt2", Rows::flattened, true},
                                                        {"gpt2", Rows::padded, false},
                                                        {"qwen2.5-7b", Rows::flattened, false}}) {
    Refusable a{.model = model};
    a.s.rows = rows;
    CAPTURE(model);
    CHECK(refusal_of(a) == kNothing);
    a.s.attention = Attention::flash_2;
    CHECK((refusal_of(a) != kNothing) == refused);
  }
}

TEST_CASE("FSDP offloads all that it shards, and nothing else is offloaded on pytorch") {
  const auto offload = [](Refusable& a) { shard_by_fsdp(a), a.s.offload.params = true; };
  check_refusals(
      {
          {kNothing, [](Refusable&) {}},
          {"--offload activations", [](Refusable& a) { a.s.offload.activations = true; }},
          {"--offload optimizer with --zero 2 or 3: FSDP offloads",
           [](Refusable& a) { a.s.offload = {.optimizer = true}; }},
          {"--offload params needs --zero 2 or 3", [](Refusable& a) { a.s.data.zero = 1; }},
          {kNothing, [](Refusable& a) { a.s.data.zero = 2; }},
          {"--offload params on one rank", [](Refusable& a) { a.s.gpus = 1; }},
          {"--offload params with --precision fp16-mixed",
           [](Refusable& a) { a.s.precision = Precision::fp16_mixed; }},
          {"--offload params is modelled with adamw, sgd and momentum",
           [](Refusable& a) { a.s.optimizer = models::Optimizer::rmsprop; }},
          {kNothing, [](Refusable& a) { a.s.optimizer = models::Optimizer::sgd; }},
          {kNothing, [](Refusable& a) { a.s.optimizer = models::Optimizer::momentum; }},
          {"--offload params with --fsdp-version 1, not pinned",
           [](Refusable& a) { a.s.data.fsdp_version = 1, a.s.offload.pinned = false; }},
          {kNothing, [](Refusable& a) { a.s.data.fsdp_version = 1; }},
          {kNothing, [](Refusable& a) { a.s.offload.pinned = false; }},
      },
      offload);
}

TEST_CASE("adapters, projections and steps in the backward") {
  check_refusals({
      {"--modules-to-save with FSDP",
       [](Refusable& a) {
         shard_by_fsdp(a, 2, 2),
             a.s.lora = models::Lora{.targets = {"q_proj"}, .modules_to_save = {"lm_head"}};
       }},
      {kNothing,
       [](Refusable& a) {
         a.s.gpus = 2,
         a.s.lora = models::Lora{.targets = {"q_proj"}, .modules_to_save = {"lm_head"}};
       }},
      {"--lora-bias yes with FSDP",
       [](Refusable& a) {
         shard_by_fsdp(a), a.s.lora = models::Lora{.targets = {"q_proj"}, .bias = true};
       }},
      {kNothing,
       [](Refusable& a) {
         shard_by_fsdp(a, 2, 1), a.s.lora = models::Lora{.targets = {"q_proj"}, .bias = true};
       }},
      {"--optimizer galore on several GPUs",
       [](Refusable& a) { a.s.gpus = 2, a.s.optimizer = models::Optimizer::galore; }},
      // APOLLO draws its basis by a seed: every rank has the same.
      {kNothing, [](Refusable& a) { a.s.gpus = 2, a.s.optimizer = models::Optimizer::apollo; }},
      {kNothing, [](Refusable& a) { a.s.optimizer = models::Optimizer::galore; }},
      {"--optimizer apollo with --lora-rank",
       [](Refusable& a) {
         a.s.optimizer = models::Optimizer::apollo, a.s.lora = models::Lora{.targets = {"q_proj"}};
       }},
      {"--optimizer apollo with --precision fp16-mixed",
       [](Refusable& a) {
         a.s.optimizer = models::Optimizer::apollo, a.s.precision = Precision::fp16_mixed;
       }},
  });
  check_refusals(
      {
          {kNothing, [](Refusable&) {}},
          {"--optimizer-in-backward with --grad-accum",
           [](Refusable& a) { a.batch.grad_accum = 2; }},
          {"--optimizer-in-backward with --precision fp16-mixed",
           [](Refusable& a) { a.s.precision = Precision::fp16_mixed; }},
          {"--optimizer-in-backward is modelled on one GPU", [](Refusable& a) { a.s.gpus = 2; }},
      },
      [](Refusable& a) { a.s.optimizer_in_backward = true; });
}
