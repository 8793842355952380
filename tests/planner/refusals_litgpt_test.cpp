// What stack pytorch refuses of LitGPT's own code, and where each refusal ends.
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

void litgpt(Refusable& a) {
  a.s.code = ModelCode::litgpt_0_5_13;
  a.s.precision = Precision::bf16;
}

void litgpt_lora(Refusable& a) {
  litgpt(a);
  a.s.lora = models::Lora{.dtype = DType::bf16, .targets = {"q_proj", "v_proj"}};
  a.s.loss = Loss::chunked;
}

}  // namespace

TEST_CASE("LitGPT's code runs as its scripts do on one GPU") {
  const char* const one = "--model-code litgpt@0.5.13 is modelled on one GPU";
  const char* const bf16 = "--model-code litgpt@0.5.13 is modelled with --precision bf16 alone";
  const char* const own = "--model-code litgpt@0.5.13 runs its own kernels";
  check_refusals(
      {
          {kNothing, [](Refusable&) {}},
          {one, [](Refusable& a) { a.s.gpus = 8; }},
          {one, [](Refusable& a) { shard_by_fsdp(a); }},
          {bf16, [](Refusable& a) { a.s.precision = Precision::bf16_mixed; }},
          {bf16, [](Refusable& a) { a.s.param_dtype = DType::fp32; }},
          {bf16, [](Refusable& a) { a.s.grad_dtype = DType::fp32; }},
          {kNothing, [](Refusable& a) { a.s.param_dtype = a.s.grad_dtype = DType::bf16; }},
          {own, [](Refusable& a) { a.s.kernels = Kernels::liger; }},
          {own, [](Refusable& a) { a.s.attention = Attention::eager; }},
          {"--model-code litgpt@0.5.13 with all parameters trained runs the head at once",
           [](Refusable& a) { a.s.loss = Loss::chunked; }},
          {"--model-code litgpt@0.5.13 trains all parameters, or adapters",
           [](Refusable& a) { a.s.freeze = {"*embed*"}; }},
          {"--model-code litgpt@0.5.13 with --offload",
           [](Refusable& a) { a.s.offload.optimizer = true; }},
          {"--model-code litgpt@0.5.13 holds the logits",
           [](Refusable& a) { a.s.hold_outputs = true; }},
          {kNothing, [](Refusable& a) { a.batch.grad_accum = 2; }},
          {"--model-code litgpt@0.5.13 has no checkpoints on one GPU",
           [](Refusable& a) { a.s.recompute.kind = RecomputeKind::full; }},
          {"--model-code litgpt@0.5.13 with --optimizer-in-backward",
           [](Refusable& a) { a.s.optimizer_in_backward = true; }},
          {"--model-code litgpt@0.5.13 with --compile",
           [](Refusable& a) { a.s.compile = models::Compile::block; }},
      },
      litgpt);
}

TEST_CASE("LitGPT's code of 2024 packs with the bitsandbytes that it asks for") {
  const auto packed = [](Refusable& a) {
    pack_base(a, "nf4");
    litgpt_lora(a);
    a.s.code = ModelCode::litgpt_0_3_0;
    a.s.torch = {2, 4, 1};
    a.s.bitsandbytes = {0, 42, 0};
  };
  const char* const other = "--model-code litgpt@0.3.0 packs with bitsandbytes 0.42.0";
  check_refusals({{kNothing, [](Refusable&) {}},
                  {kNothing, [](Refusable& a) { a.s.code = ModelCode::litgpt_0_4_13; }},
                  {other,
                   [](Refusable& a) {
                     a.s.bitsandbytes = {0, 43, 3};
                   }},
                  {other, [](Refusable& a) { a.s.bitsandbytes = models::kBitsandbytes; }},
                  {"--torch-version 2.8.0 with --model-code",
                   [](Refusable& a) {
                     a.s.torch = {2, 8, 0}, a.s.bitsandbytes = {0, 50, 2};
                   }}},
                 packed);
}

TEST_CASE("LitGPT's adapters are those of its switches, the head's parts whole") {
  const char* const all = "--model-code litgpt@0.5.13 adapts all of the MLP or none of it";
  const char* const packs = "--model-code litgpt@0.5.13 packs a base under adapters in four bits";
  check_refusals(
      {
          {kNothing, [](Refusable&) {}},
          {kNothing, [](Refusable& a) { a.s.lora->targets = {"all-linear"}; }},
          {kNothing, [](Refusable& a) { a.s.lora->targets = {"k_proj"}; }},
          {all,
           [](Refusable& a) {
             a.s.lora->targets = {"q_proj", "up_proj"};
           }},
          {"--model-code litgpt@0.5.13 with an adapter of the head",
           [](Refusable& a) {
             a.s.lora->targets = {"q_proj", "lm_head"};
           }},
          {"--model-code litgpt@0.5.13 adapts q_proj, k_proj, v_proj, o_proj and the MLP",
           [](Refusable& a) { a.s.lora->targets = {"layers.0.self_attn.q_proj"}; }},
          {"--model-code litgpt@0.5.13 has adapters in the model's dtype",
           [](Refusable& a) { a.s.lora->dtype = DType::fp32; }},
          {"--model-code litgpt@0.5.13 trains A and B alone",
           [](Refusable& a) { a.s.lora->dora = true; }},
          {"--model-code litgpt@0.5.13 trains A and B alone",
           [](Refusable& a) { a.s.lora->bias = true; }},
          {"--model-code litgpt@0.5.13 trains A and B alone",
           [](Refusable& a) { a.s.lora->modules_to_save = {"lm_head"}; }},
          {"--model-code litgpt@0.5.13 with adapters runs the head on 128 tokens at a time",
           [](Refusable& a) { a.s.loss = Loss::full; }},
          {"--model-code litgpt@0.5.13 with --seq-len of 128 n + 1",
           [](Refusable& a) { a.batch.seq_len = 513; }},
          {kNothing, [](Refusable& a) { a.batch.seq_len = 514; }},
          {kNothing, [](Refusable& a) { pack_base(a, "nf4"), litgpt_lora(a); }},
          {packs, [](Refusable& a) { pack_base(a, "int8"), litgpt_lora(a); }},
          {"--model-code litgpt@0.5.13 has no --kbit-prep",
           [](Refusable& a) {
             pack_base(a, "nf4"), litgpt_lora(a);
             a.s.quantize->kbit_prep = true;
           }},
          {"--model-code litgpt@0.5.13 with --adapter other than lora",
           [](Refusable& a) { a.s.lora->kind = models::AdapterKind::ia3; }},
          {packs,
           [](Refusable& a) { pack_base(a, "nf4"), a.s.lora.reset(), a.s.loss = Loss::full; }},
      },
      litgpt_lora);
}
