// What stack pytorch refuses of packed bases and of code that is not Transformers', and where each
// refusal ends.
#include "tests/planner/refusal_rows.h"

using namespace plimsoll;
using models::Attention;
using models::Kernels;
using models::Loss;
using models::ModelCode;
using models::Precision;
using models::RecomputeKind;
using tests::check_refusals;
using tests::kNothing;
using tests::pack_base;
using tests::Refusable;
using tests::shard_by_fsdp;

namespace {

// fms-acceleration's GPTQ, as it runs.
void pack_gptq(Refusable& a, DType held_in = DType::uint8) {
  pack_base(a, "gptq", held_in);
  a.s.precision = Precision::fp16_mixed;
  a.s.param_dtype = DType::fp16;
}

void prepare(Refusable& a, bool yes) {
  a.s.quantize->kbit_prep = yes;
}

void torchtitan(Refusable& a) {
  a.s.code = ModelCode::torchtitan_0_2_2;
  shard_by_fsdp(a);
}

void torchtune(Refusable& a) {
  a.s.code = ModelCode::torchtune_0_6_1;
  a.s.precision = Precision::bf16;
}

void adapt(Refusable& a, std::vector<std::string> targets) {
  a.s.lora = models::Lora{.dtype = DType::bf16, .targets = std::move(targets)};
}

}  // namespace

TEST_CASE("packed bases under FSDP are held in the floating dtype that its policy computes in") {
  check_refusals({
      {kNothing, [](Refusable& a) { pack_base(a, "nf4"); }},
      {kNothing, [](Refusable& a) { pack_base(a, "nf4"), a.s.gpus = 8; }},
      {kNothing, [](Refusable& a) { pack_base(a, "nf4"), shard_by_fsdp(a, 2, 1); }},
      {kNothing, [](Refusable& a) { pack_base(a, "nf4", DType::bf16), shard_by_fsdp(a); }},
      {kNothing, [](Refusable& a) { pack_base(a, "nf4", DType::bf16), shard_by_fsdp(a, 2, 2); }},
      {kNothing, [](Refusable& a) { pack_base(a, "nf4", DType::bf16), shard_by_fsdp(a, 1); }},
      {"--quantize with --fsdp-version 1 --zero 2",
       [](Refusable& a) { pack_base(a, "nf4", DType::bf16), shard_by_fsdp(a, 1, 2); }},
      {"--quantize with --fsdp-version 1: PyTorch stops with \"Cannot flatten integer",
       [](Refusable& a) { pack_base(a, "nf4"), shard_by_fsdp(a, 1); }},
      {"--quantize with FSDP: packed values in uint8 are not sharded",
       [](Refusable& a) { pack_base(a, "nf4"), shard_by_fsdp(a, 2, 2); }},
      {"--quant-storage fp16: FSDP's policy would cast packed values to bf16",
       [](Refusable& a) { pack_base(a, "nf4", DType::fp16), shard_by_fsdp(a); }},
      {kNothing,
       [](Refusable& a) {
         pack_base(a, "nf4", DType::fp16), shard_by_fsdp(a), a.s.precision = Precision::bf16;
       }},
      {"--fsdp-upcast yes: Accelerate upcasts nothing where the base is packed",
       [](Refusable& a) {
         pack_base(a, "nf4", DType::bf16), shard_by_fsdp(a), a.s.data.fsdp_upcast = true;
       }},
      {kNothing,
       [](Refusable& a) {
         pack_base(a, "nf4", DType::bf16), shard_by_fsdp(a), a.s.data.fsdp_upcast = false;
       }},
  });
}

TEST_CASE("a prepared packed base needs autocast and no shards; every one needs a flash kernel") {
  check_refusals({
      {kNothing, [](Refusable& a) { pack_base(a, "nf4"), prepare(a, true); }},
      {"--kbit-prep yes with FSDP",
       [](Refusable& a) {
         pack_base(a, "nf4", DType::bf16), prepare(a, true), shard_by_fsdp(a, 2, 2);
       }},
      {"--kbit-prep yes without autocast",
       [](Refusable& a) {
         pack_base(a, "nf4"), prepare(a, true), a.s.precision = Precision::bf16;
       }},
      {kNothing, [](Refusable& a) { pack_base(a, "nf4"), a.s.precision = Precision::bf16; }},
      {"--quantize with --attention eager or math",
       [](Refusable& a) { pack_base(a, "nf4"), a.s.attention = Attention::math; }},
      {"--quantize with --attention eager or math, or --recompute selective",
       [](Refusable& a) { pack_base(a, "nf4"), a.s.recompute.kind = RecomputeKind::selective; }},
      {kNothing, [](Refusable& a) { pack_base(a, "nf4"), a.s.attention = Attention::flash_2; }},
      {kNothing,
       [](Refusable& a) { pack_base(a, "nf4"), a.s.recompute.kind = RecomputeKind::full; }},
  });
}

TEST_CASE("LLM.int8() and GPTQ are held as they are, and sharded as their code can be") {
  check_refusals({
      {kNothing, [](Refusable& a) { pack_base(a, "int8"); }},
      {kNothing, [](Refusable& a) { pack_base(a, "int8"), shard_by_fsdp(a, 2, 1); }},
      {"--quant-storage bf16: bitsandbytes holds 4-bit values so",
       [](Refusable& a) { pack_base(a, "int8", DType::bf16); }},
      {"--quantize int8 with FSDP2",
       [](Refusable& a) { pack_base(a, "int8"), shard_by_fsdp(a, 2, 2); }},
      {"--quantize int8 with --fsdp-version 1",
       [](Refusable& a) { pack_base(a, "int8"), shard_by_fsdp(a, 1); }},
      {kNothing, [](Refusable& a) { pack_gptq(a); }},
      {"--quantize gptq is modelled with --precision fp16-mixed",
       [](Refusable& a) { pack_gptq(a), a.s.precision = Precision::bf16_mixed; }},
      {"--quantize gptq is modelled with --precision fp16-mixed on weights in fp16",
       [](Refusable& a) { pack_gptq(a), a.s.param_dtype = DType::fp32; }},
      {"--quant-storage fp16: GPTQ's integers are held in floats for FSDP alone",
       [](Refusable& a) { pack_gptq(a, DType::fp16); }},
      {"--quantize gptq with FSDP is modelled with --fsdp-version 1 --zero 3 alone",
       [](Refusable& a) { pack_gptq(a, DType::fp16), shard_by_fsdp(a); }},
      {"--quantize gptq with FSDP is modelled with --fsdp-version 1 --zero 3 alone",
       [](Refusable& a) { pack_gptq(a, DType::fp16), shard_by_fsdp(a, 1, 2); }},
      {"--quantize gptq with FSDP: fms-acceleration holds packed integers in the dtype",
       [](Refusable& a) { pack_gptq(a), shard_by_fsdp(a, 1); }},
      {kNothing, [](Refusable& a) { pack_gptq(a, DType::fp16), shard_by_fsdp(a, 1); }},
  });
}

TEST_CASE("torchao's 8 bits train on one GPU, HQQ's with Transformers before 4.56, unsharded") {
  const auto hqq = [](Refusable& a, models::Release release = {4, 55, 0}) {
    pack_base(a, "hqq");
    a.s.lora->targets = {"attention"};
    a.s.transformers = release, a.s.param_dtype = DType::bf16;
  };
  check_refusals({
      {kNothing, [](Refusable& a) { pack_base(a, "torchao-int8"); }},
      {"--quantize torchao-int8 on more than one GPU",
       [](Refusable& a) { pack_base(a, "torchao-int8"), a.s.gpus = 2; }},
      {"--quant-storage bf16: bitsandbytes holds 4-bit values so",
       [](Refusable& a) { pack_base(a, "torchao-int8", DType::bf16); }},
      {"--quantize torchao-int8 is modelled with Transformers 5",
       [](Refusable& a) {
         pack_base(a, "torchao-int8"), a.s.transformers = {4, 57, 0};
       }},
      {"--kbit-prep yes with --quantize torchao-int8",
       [](Refusable& a) { pack_base(a, "torchao-int8"), a.s.quantize->kbit_prep = true; }},
      {kNothing, [&](Refusable& a) { hqq(a); }},
      {kNothing, [&](Refusable& a) { hqq(a), a.s.gpus = 2; }},
      {"--quantize hqq: Transformers 5.0.0 stops",
       [&](Refusable& a) {
         hqq(a, {5, 0, 0});
       }},
      {"--quantize hqq: Transformers 4.56.0 has HQQLinear compute in fp32",
       [&](Refusable& a) {
         hqq(a, {4, 56, 0});
       }},
      {"--quantize hqq on weights loaded in fp32",
       [&](Refusable& a) { hqq(a), a.s.param_dtype = DType::fp32; }},
      {"--quantize hqq on weights loaded in fp16",
       [&](Refusable& a) { hqq(a), a.s.param_dtype = DType::fp16; }},
      {"--kbit-prep yes with --quantize hqq",
       [&](Refusable& a) { hqq(a), a.s.quantize->kbit_prep = true; }},
      {"--lora-targets all-linear with --quantize hqq: PEFT means torch.nn.Linear by it",
       [&](Refusable& a) { hqq(a), a.s.lora->targets = {"all-linear"}; }},
      {"--quantize hqq with FSDP2", [&](Refusable& a) { hqq(a), shard_by_fsdp(a, 2, 2); }},
      {"--quantize hqq with --fsdp-version 1", [&](Refusable& a) { hqq(a), shard_by_fsdp(a, 1); }},
  });
}

TEST_CASE("fused adapters unpack what fms-acceleration's do, in what it computes in") {
  const auto fused = [](Refusable& a) {
    pack_base(a, "nf4-dq");
    a.s.kernels = Kernels::fused;
    a.s.param_dtype = DType::bf16;
    a.s.quantize->kbit_prep = false;
  };
  const auto packed_as = [](Refusable& a, const char* storage) {
    a.s.quantize->storage = models::find_packed_storage(storage);
  };
  check_refusals(
      {
          {kNothing, [](Refusable&) {}},
          {kNothing,
           [](Refusable& a) {
             a.s.precision = Precision::fp16_mixed, a.s.param_dtype = DType::fp16;
           }},
          {kNothing,
           [&](Refusable& a) {
             a.s.precision = Precision::fp16_mixed, a.s.param_dtype = DType::fp16;
             packed_as(a, "gptq");
           }},
          {"--kernels fused --quantize nf4: ", [&](Refusable& a) { packed_as(a, "nf4"); }},
          {"--kernels fused --quantize int8: ", [&](Refusable& a) { packed_as(a, "int8"); }},
          {"--kernels fused --quantize: fms-acceleration requires mixed precision",
           [](Refusable& a) { a.s.precision = Precision::bf16; }},
          {"--kernels fused --quantize is modelled on weights loaded in what it computes in",
           [](Refusable& a) { a.s.param_dtype = DType::fp16; }},
          {"--kernels fused --quantize is modelled on weights loaded in what it computes in",
           [](Refusable& a) { a.s.param_dtype.reset(); }},
          {"--kernels fused --quantize is modelled on weights loaded in what it computes in",
           [](Refusable& a) { prepare(a, true); }},
          {"--kernels fused --quantize with FSDP is modelled with --fsdp-version 1 alone",
           [](Refusable& a) { a.s.quantize->held_in = DType::bf16, shard_by_fsdp(a, 2, 2); }},
          {kNothing,
           [](Refusable& a) { a.s.quantize->held_in = DType::bf16, shard_by_fsdp(a, 1); }},
          {kNothing, [](Refusable& a) { shard_by_fsdp(a, 2, 1); }},
      },
      fused);
}

TEST_CASE("torchtitan's code runs as its own parallelize_llama and train do") {
  check_refusals(
      {
          {kNothing, [](Refusable&) {}},
          {kNothing, [](Refusable& a) { a.s.code = ModelCode::torchtitan_2024_12; }},
          {"--model-code torchtitan@0.2.2 is modelled with FSDP2's full shard",
           [](Refusable& a) { a.s.data.zero = 2; }},
          {"--model-code torchtitan@0.2.2 is modelled with FSDP2's full shard",
           [](Refusable& a) { a.s.data.fsdp_version = 1; }},
          {"--model-code torchtitan@0.2.2 is modelled with FSDP2's full shard",
           [](Refusable& a) { a.s.gpus = 1; }},
          {"--model-code torchtitan@0.2.2 is modelled with --precision bf16-mixed",
           [](Refusable& a) { a.s.precision = Precision::bf16; }},
          {"--model-code torchtitan@0.2.2 is modelled with --precision bf16-mixed on fp32 weights",
           [](Refusable& a) { a.s.param_dtype = DType::bf16; }},
          {kNothing, [](Refusable& a) { a.s.param_dtype = DType::fp32; }},
          {"--model-code torchtitan@0.2.2 runs its own kernels",
           [](Refusable& a) { a.s.kernels = Kernels::liger; }},
          {"--model-code torchtitan@0.2.2 runs its own kernels",
           [](Refusable& a) { a.s.loss = Loss::chunked; }},
          {"--model-code torchtitan@0.2.2 runs its own kernels",
           [](Refusable& a) { a.s.attention = Attention::flash_2; }},
          {"--model-code torchtitan@0.2.2 trains all parameters",
           [](Refusable& a) { a.s.lora = models::Lora{.targets = {"q_proj"}}; }},
          {"--model-code torchtitan@0.2.2 trains all parameters",
           [](Refusable& a) { pack_base(a, "nf4", DType::bf16), a.s.lora.reset(); }},
          {"--model-code torchtitan@0.2.2 trains all parameters",
           [](Refusable& a) { a.s.freeze = {"*embed*"}; }},
          {"--model-code torchtitan@0.2.2 trains all parameters",
           [](Refusable& a) { a.s.train = {"*embed*"}; }},
          {"--model-code torchtitan@0.2.2 with --offload",
           [](Refusable& a) { a.s.offload.params = true; }},
          {"--model-code torchtitan@0.2.2 has no reentrant checkpoints",
           [](Refusable& a) { a.s.use_reentrant = true; }},
          {"--model-code torchtitan@0.2.2 with --grad-accum",
           [](Refusable& a) { a.batch.grad_accum = 2; }},
          {"--model-code torchtitan@0.2.2 is modelled with --recompute none",
           [](Refusable& a) { a.s.recompute.kind = RecomputeKind::selective; }},
          {kNothing, [](Refusable& a) { a.s.recompute.kind = RecomputeKind::full; }},
          {kNothing,
           [](Refusable& a) {
             a.s.recompute = {.kind = RecomputeKind::ops, .kept = {"torchtitan"}};
           }},
          {"--compile with --model-code torchtitan@0.2.2 (torchtitan@2024-12 is)",
           [](Refusable& a) { a.s.compile = models::Compile::block; }},
          {kNothing,
           [](Refusable& a) {
             a.s.code = ModelCode::torchtitan_2024_12, a.s.compile = models::Compile::block;
           }},
          {kNothing, [](Refusable& a) { a.s.tp = 2; }},
          {"--model-code torchtitan@2024-03 with --tp is not modelled",
           [](Refusable& a) { a.s.tp = 2, a.s.code = ModelCode::torchtitan_2024_03; }},
          {"--model-code torchtitan@0.2.2 with --tp is modelled beside FSDP2's shards alone",
           [](Refusable& a) { a.s.tp = a.s.gpus; }},
          {"--model-code torchtitan@0.2.2 with --tp and --compile is not modelled yet",
           [](Refusable& a) { a.s.tp = 2, a.s.compile = models::Compile::block; }},
          {"--model-code torchtitan@0.2.2 with --tp and --precision fp8-mixed is not modelled yet",
           [](Refusable& a) { a.s.tp = 2, a.s.precision = Precision::fp8_mixed; }},
          {"--seq-len 127: does not divide by --tp 2",
           [](Refusable& a) { a.s.tp = 2, a.batch.seq_len = 127; }},
          {kNothing, [](Refusable& a) { a.s.code = ModelCode::torchtitan_2024_03; }},
          {"--compile with --model-code torchtitan@2024-03 (torchtitan@2024-12 is)",
           [](Refusable& a) {
             a.s.code = ModelCode::torchtitan_2024_03, a.s.compile = models::Compile::block;
           }},
      },
      torchtitan);
}

TEST_CASE("torchtune's code runs as its recipes do") {
  check_refusals(
      {
          {kNothing, [](Refusable&) {}},
          {kNothing, [](Refusable& a) { shard_by_fsdp(a); }},
          {"--model-code torchtune@0.6.1 is modelled on one GPU",
           [](Refusable& a) { a.s.data.zero = 3; }},
          {"--model-code torchtune@0.6.1 is modelled on one GPU",
           [](Refusable& a) { a.s.gpus = 8; }},
          {"--model-code torchtune@0.6.1 is modelled on one GPU",
           [](Refusable& a) { shard_by_fsdp(a, 2, 2); }},
          {"--model-code torchtune@0.6.1 is modelled on one GPU",
           [](Refusable& a) { shard_by_fsdp(a, 1); }},
          {"--model-code torchtune@0.6.1 with --shard-group",
           [](Refusable& a) { shard_by_fsdp(a), a.s.data.shard_group = 4; }},
          {"--model-code torchtune@0.6.1 is modelled with --precision bf16 alone",
           [](Refusable& a) { a.s.precision = Precision::bf16_mixed; }},
          {"--model-code torchtune@0.6.1 is modelled with --precision bf16 alone",
           [](Refusable& a) { a.s.param_dtype = DType::fp32; }},
          {"--model-code torchtune@0.6.1 is modelled with --precision bf16 alone",
           [](Refusable& a) { a.s.grad_dtype = DType::fp32; }},
          {"--model-code torchtune@0.6.1 is modelled with --precision bf16 alone",
           [](Refusable& a) { a.s.data.reduce_dtype = DType::fp32; }},
          {kNothing,
           [](Refusable& a) {
             shard_by_fsdp(a);
             a.s.param_dtype = a.s.grad_dtype = a.s.data.reduce_dtype = DType::bf16;
           }},
          {"--model-code torchtune@0.6.1 with --quantize",
           [](Refusable& a) { pack_base(a, "nf4"); }},
          {"--model-code torchtune@0.6.1 runs its own kernels",
           [](Refusable& a) { a.s.kernels = Kernels::liger; }},
          {"--model-code torchtune@0.6.1 runs its own kernels",
           [](Refusable& a) { a.s.loss = Loss::fused; }},
          {kNothing, [](Refusable& a) { a.s.loss = Loss::chunked; }},
          {"--model-code torchtune@0.6.1 runs its own kernels",
           [](Refusable& a) { a.s.attention = Attention::eager; }},
          {"--model-code torchtune@0.6.1 trains all parameters, or adapters",
           [](Refusable& a) { a.s.freeze = {"*embed*"}; }},
          {"--model-code torchtune@0.6.1 trains all parameters, or adapters",
           [](Refusable& a) { a.s.train = {"*embed*"}; }},
          {"--model-code torchtune@0.6.1 with --offload",
           [](Refusable& a) { shard_by_fsdp(a), a.s.offload.params = true; }},
          {"--model-code torchtune@0.6.1 with --offload",
           [](Refusable& a) { a.s.offload.optimizer = true; }},
          {"--model-code torchtune@0.6.1 lets go of the logits",
           [](Refusable& a) { a.s.hold_outputs = true; }},
          {"--model-code torchtune@0.6.1 has no reentrant checkpoints",
           [](Refusable& a) { a.s.use_reentrant = true; }},
          {kNothing, [](Refusable& a) { a.batch.grad_accum = 2; }},
          {"--model-code torchtune@0.6.1 with --grad-accum on several GPUs",
           [](Refusable& a) { shard_by_fsdp(a), a.batch.grad_accum = 2; }},
          {"--model-code torchtune@0.6.1 is modelled with --recompute none and full",
           [](Refusable& a) { a.s.recompute.kind = RecomputeKind::sqrt; }},
          {kNothing, [](Refusable& a) { a.s.recompute.kind = RecomputeKind::full; }},
          {"--model-code torchtune@0.6.1 with --compile",
           [](Refusable& a) { a.s.compile = models::Compile::block; }},
      },
      torchtune);
}

TEST_CASE("torchtune adapts modules of the attention, and all of the MLP or none of it") {
  check_refusals(
      {
          {kNothing, [](Refusable& a) { adapt(a, {"q_proj"}); }},
          {kNothing, [](Refusable& a) { adapt(a, {"all-linear"}); }},
          {"--model-code torchtune@0.6.1 has adapters in the model's dtype",
           [](Refusable& a) { adapt(a, {"q_proj"}), a.s.lora->dtype = DType::fp32; }},
          {"--model-code torchtune@0.6.1 with --use-dora",
           [](Refusable& a) { adapt(a, {"q_proj"}), a.s.lora->dora = true; }},
          {"--model-code torchtune@0.6.1 trains adapters alone",
           [](Refusable& a) { adapt(a, {"q_proj"}), a.s.lora->bias = true; }},
          {"--model-code torchtune@0.6.1 trains adapters alone",
           [](Refusable& a) { adapt(a, {"q_proj"}), a.s.lora->modules_to_save = {"lm_head"}; }},
          {"--model-code torchtune@0.6.1 adapts modules of the attention",
           [](Refusable& a) {
             adapt(a, {"gate_proj", "up_proj", "down_proj"});
           }},
          {"--model-code torchtune@0.6.1 adapts modules of the attention",
           [](Refusable& a) {
             adapt(a, {"q_proj", "gate_proj"});
           }},
          {"--model-code torchtune@0.6.1 adapts modules of the attention",
           [](Refusable& a) {
             adapt(a, {"q_proj", "gate_proj", "up_proj"});
           }},
          {kNothing,
           [](Refusable& a) {
             adapt(a, {"v_proj", "gate_proj", "up_proj", "down_proj"});
           }},
          {"--model-code torchtune@0.6.1 adapts modules of the attention",
           [](Refusable& a) {
             adapt(a, {"q_proj", "lm_head"});
           }},
      },
      torchtune);
}

TEST_CASE("experts of a loop: no saved modules, and as many visits as experts") {
  const auto loops = [](Refusable& a) {
    a.model = "mixtral-8x7b";
    a.s.transformers = {4, 57, 0};
  };
  check_refusals(
      {
          {kNothing, [](Refusable&) {}},
          {kNothing, [](Refusable& a) { pack_gptq(a); }},
          {kNothing, [](Refusable& a) { pack_base(a, "nf4"); }},
          {"--transformers-version 4.57.0: --modules-to-save",
           [](Refusable& a) {
             a.s.lora = models::Lora{.targets = {"q_proj"}, .modules_to_save = {"lm_head"}};
           }},
          // Two experts a token, eight in all.
          {kNothing, [](Refusable& a) { a.batch.seq_len = 4; }},
          {"--transformers-version 4.57.0: a micro-batch with fewer visits than experts",
           [](Refusable& a) { a.batch.seq_len = 3; }},
          {kNothing,
           [](Refusable& a) {
             a.batch.seq_len = 3, a.s.transformers = {5, 0, 0};
           }},
      },
      loops);
}
