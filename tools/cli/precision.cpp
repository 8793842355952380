#include "tools/cli/precision.h"

#include "tools/cli/option_setters.h"

namespace plimsoll::tools {

namespace {
using models::Stack;
using models::Strategy;

// Where mixed precision is 16-bit weights beside fp32 masters: what contradicts that, but for what
// a base is packed from.
void set_mixed_precision(const Options& options, const Strategy& s) {
  const bool mixed = is_mixed(s.precision), bf16 = s.precision != models::Precision::fp16_mixed;
  const DType low = bf16 ? DType::bf16 : DType::fp16;
  const bool free = !mixed || (s.stack == Stack::deepspeed && options.has("quantize"));
  require(options, "param-dtype", free || s.param_dtype == low,
          fmt::format("--precision {} on --stack {} means {} weights beside fp32 masters",
                      name_of(s.precision), name_of(s.stack), name_of(low)));
  if (s.stack != Stack::deepspeed) return;
  require(options, "grad-dtype", !mixed || s.grad_dtype == DType::fp32 || s.grad_dtype == low,
          fmt::format("must be fp32 or {}, as the weights are", name_of(low)));
  require(options, "master-weights", mixed || !s.master_weights.value_or(false),
          fmt::format("--precision {} on --stack deepspeed keeps none", name_of(s.precision)));
}

// FSDP has one dtype to reduce in, and two options for it.
void set_reduce_dtype(const Options& options, Strategy& s) {
  const bool pytorch = s.stack == Stack::pytorch;
  set_parsed(options, "reduce-dtype", float_dtype, s.data.reduce_dtype);
  require(options, "reduce-dtype", !pytorch || !s.grad_dtype || s.grad_dtype == s.data.reduce_dtype,
          "FSDP reduces in one dtype, and --grad-dtype says another");
  if (!pytorch || s.data.zero < 2) return;
  if (!s.grad_dtype) s.grad_dtype = s.data.reduce_dtype;
  s.data.reduce_dtype = s.grad_dtype;
}

}  // namespace

void set_precision(const Options& options, Strategy& s) {
  set_choice(options, "precision", s.precision);
  for (const char* option : {"fp8-recipe", "fp8-all-gather"})
    require(options, option, s.precision == models::Precision::fp8_mixed,
            "is of --precision fp8-mixed");
  set_choice(options, "fp8-recipe", s.fp8_recipe);
  set_parsed(options, "fp8-all-gather", yes_or_no, s.fp8_all_gather);
  set_parsed(options, "param-dtype", float_dtype, s.param_dtype);
  set_parsed(options, "grad-dtype", float_dtype, s.grad_dtype);
  set_parsed(options, "master-weights", yes_or_no, s.master_weights);
  const bool pytorch = s.stack == Stack::pytorch;
  require(options, "master-weights", !pytorch,
          "pytorch keeps none beside the weights; --param-dtype says what the weights are");
  require(options, "grad-dtype", !pytorch || s.data.zero >= 2,
          "DDP's gradients have the dtype of the weights; FSDP's reduce dtype can be chosen");
  set_reduce_dtype(options, s);
  const auto same = [&](models::Precision precision, DType dtype) {
    require(options, "param-dtype", s.precision != precision || s.param_dtype == dtype,
            fmt::format("--precision {} means that all is {}", name_of(precision), name_of(dtype)));
  };
  same(models::Precision::fp32, DType::fp32);
  same(models::Precision::bf16, DType::bf16);
  same(models::Precision::fp16, DType::fp16);
  if (!pytorch) set_mixed_precision(options, s);
}

}  // namespace plimsoll::tools
