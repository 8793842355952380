// What stack pytorch refuses of AWQ bases, and of those that no package has.
#include "tests/planner/refusal_rows.h"

using namespace plimsoll;
using models::Precision;
using tests::check_refusals;
using tests::kNothing;
using tests::pack_base;
using tests::Refusable;
using tests::shard_by_fsdp;

TEST_CASE("AWQ is planned in fp16, whole on each GPU, of modules that PEFT is told by name") {
  const auto awq = [](Refusable& a, DType held_in = DType::uint8) {
    pack_base(a, "awq", held_in);
    a.s.precision = Precision::fp16_mixed;
    a.s.lora->targets = {"attention"};
    a.s.param_dtype = DType::fp16;
  };
  check_refusals({
      {kNothing, [&](Refusable& a) { awq(a); }},
      {kNothing,
       [&](Refusable& a) {
         awq(a), a.s.transformers = {4, 57, 0};
       }},
      {kNothing, [&](Refusable& a) { awq(a), shard_by_fsdp(a, 2, 1); }},
      {"--quantize awq is modelled with --precision fp16-mixed on weights in fp16",
       [&](Refusable& a) { awq(a), a.s.precision = Precision::bf16_mixed; }},
      {"--quantize awq is modelled with --precision fp16-mixed on weights in fp16",
       [&](Refusable& a) { awq(a), a.s.param_dtype.reset(); }},
      {"--quant-storage fp16: bitsandbytes holds 4-bit values so",
       [&](Refusable& a) { awq(a, DType::fp16); }},
      {"--quantize awq with FSDP is not modelled yet",
       [&](Refusable& a) { awq(a), shard_by_fsdp(a, 2, 3); }},
      {"--kbit-prep yes with --quantize awq",
       [&](Refusable& a) { awq(a), a.s.quantize->kbit_prep = true; }},
      {"--lora-targets all-linear with --quantize awq: PEFT means torch.nn.Linear",
       [&](Refusable& a) { awq(a), a.s.lora->targets = {"all-linear"}; }},
  });
}

TEST_CASE("a base that our own runtime alone packs so is refused") {
  check_refusals({
      {"--quantize int8-affine is plimsoll's runtime's own (--stack plimsoll); 8 bits that "
       "packages "
       "of PyTorch have are int8 and torchao-int8",
       [](Refusable& a) { pack_base(a, "int8-affine"); }},
      {kNothing, [](Refusable& a) { pack_base(a, "int8"); }},
  });
}
