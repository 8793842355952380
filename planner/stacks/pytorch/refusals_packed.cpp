// What stack pytorch does not plan of packed bases.
#include <algorithm>
#include <string>

#include "models/decisions/layer.h"
#include "models/decisions/mesh.h"
#include "models/run_names.h"
#include "models/storages.h"
#include "planner/stacks/pytorch/refusals.h"
#include "planner/stacks/pytorch/regime.h"

namespace plimsoll::planner::pytorch {

namespace {

void refuse_int8(const models::Strategy& s) {
  const models::Quantization& q = *s.quantize;
  const bool sharded = s.data.zero >= 2;
  check(q.held_in == DType::uint8, ErrorKind::bad_input, [&] {
    return "--quant-storage " + std::string(name_of(q.held_in)) +
           ": bitsandbytes holds 4-bit values so (bnb_4bit_quant_storage), not those of "
           "--quantize int8";
  });
  check(!sharded || is_fsdp1(s), ErrorKind::bad_input,
        "--quantize int8 with FSDP2: PyTorch stops with \"only Tensors of floating point dtype can "
        "require gradients\"; --zero 0 and 1 run, and so does --quantize nf4 --quant-storage bf16");
  check(!is_fsdp1(s), ErrorKind::bad_input,
        "--quantize int8 with --fsdp-version 1: PyTorch stops with \"Cannot flatten integer dtype "
        "tensors\"; --zero 0 and 1 run, and so does --quantize nf4 --quant-storage bf16");
}

void refuse_gptq(const models::Strategy& s) {
  const models::Quantization& q = *s.quantize;
  const bool sharded = s.data.zero >= 2;
  check((s.precision == models::Precision::fp16_mixed &&
         s.param_dtype.value_or(DType::fp16) == DType::fp16),
        ErrorKind::unsupported,
        "--quantize gptq is modelled with --precision fp16-mixed on weights in fp16 alone: "
        "fms-acceleration asks for that, as its kernels make fp16");
  check(!sharded || (is_fsdp1(s) && s.data.zero == 3), ErrorKind::unsupported,
        "--quantize gptq with FSDP is modelled with --fsdp-version 1 --zero 3 alone "
        "(fms-acceleration's)");
  check(!is_fsdp1(s) || q.held_in == DType::fp16, ErrorKind::bad_input,
        "--quantize gptq with FSDP: fms-acceleration holds packed integers in the dtype of the "
        "weights, so that FSDP shards them: --quant-storage fp16");
  check(sharded || q.held_in == DType::uint8, ErrorKind::bad_input, [&] {
    return "--quant-storage " + std::string(name_of(q.held_in)) +
           ": GPTQ's integers are held in floats for FSDP alone";
  });
}

// PEFT means torch.nn.Linear by all-linear (tuners/tuners_utils.py,
// _maybe_include_all_linear_layers).
void refuse_all_linear(const models::Strategy& s, const char* linear) {
  check(!s.lora || std::ranges::find(s.lora->targets, "all-linear") == s.lora->targets.end(),
        ErrorKind::bad_input, [&] {
          return "--lora-targets all-linear with --quantize " +
                 std::string(s.quantize->storage->name) +
                 ": PEFT means torch.nn.Linear by it, which " + linear +
                 " is not, and stops with \"No `target_modules` passed but also no "
                 "`target_parameters` found\": name them, as q_proj,v_proj";
        });
}

// Transformers loads it in fp16 and in nothing else (quantizers/quantizer_awq.py, update_dtype).
void refuse_awq(const models::Strategy& s) {
  const models::Quantization& q = *s.quantize;
  check(q.held_in == DType::uint8, ErrorKind::bad_input, [&] {
    return "--quant-storage " + std::string(name_of(q.held_in)) +
           ": bitsandbytes holds 4-bit values so (bnb_4bit_quant_storage), not those of "
           "--quantize awq";
  });
  check(s.precision == models::Precision::fp16_mixed &&
            s.param_dtype.value_or(DType::fp32) == DType::fp16,
        ErrorKind::unsupported,
        "--quantize awq is modelled with --precision fp16-mixed on weights in fp16 alone "
        "(--param-dtype fp16): Transformers loads AWQ in that, as its kernels make fp16");
  check(s.data.zero < 2, ErrorKind::unsupported,
        "--quantize awq with FSDP is not modelled yet: its integers are buffers, which FSDP does "
        "not shard; --zero 0 and 1 are");
  check(!q.kbit_prep.value_or(false), ErrorKind::unsupported,
        "--kbit-prep yes with --quantize awq is not modelled");
  refuse_all_linear(s, "AWQ's linear");
}

// Transformers 4.56 and 4.57 make HQQLinear compute in fp32, whatever the model is loaded in; 5
// quantizes nothing with HQQ (quantizers/base.py, get_quantize_ops).
void refuse_hqq(const models::Strategy& s) {
  const models::Quantization& q = *s.quantize;
  check(q.held_in == DType::uint8, ErrorKind::unsupported, [&] {
    return "--quant-storage " + std::string(name_of(q.held_in)) +
           " with --quantize hqq (view_as_float) is not modelled yet";
  });
  check(s.transformers < models::Release{5, 0, 0}, ErrorKind::bad_input, [&] {
    return "--quantize hqq: Transformers " + models::text_of(s.transformers) +
           " stops with \"QuantizationMethod.HQQ is not available yet and will be supported "
           "soon.\"; --transformers-version 4.55 trains with it";
  });
  check(s.transformers < models::Release{4, 56, 0}, ErrorKind::bad_input, [&] {
    return "--quantize hqq: Transformers " + models::text_of(s.transformers) +
           " has HQQLinear compute in fp32, and the step stops with \"expected mat1 and mat2 to "
           "have the same dtype\"; --transformers-version 4.55 trains with it";
  });
  const DType computes = is_mixed(s.precision) ? low_dtype(s.precision)
                                               : s.param_dtype.value_or(low_dtype(s.precision));
  const DType loaded = s.param_dtype.value_or(is_mixed(s.precision) ? DType::fp32 : computes);
  check(loaded == computes && loaded != DType::fp32 && s.precision != models::Precision::fp32,
        ErrorKind::bad_input, [&] {
          return "--quantize hqq on weights loaded in " + std::string(name_of(loaded)) +
                 ": HQQLinear computes in that, and the step stops with \"expected mat1 and mat2 "
                 "to have the same dtype\"; --param-dtype bf16 or fp16, as the precision has it";
        });
  check(s.data.zero < 2 || is_fsdp1(s), ErrorKind::bad_input,
        "--quantize hqq with FSDP2: PyTorch stops with \"only Tensors of floating point dtype can "
        "require gradients\"; --zero 0 and 1 run");
  check(!is_fsdp1(s), ErrorKind::bad_input,
        "--quantize hqq with --fsdp-version 1: PyTorch stops with \"Cannot flatten integer dtype "
        "tensors\"; --zero 0 and 1 run");
  check(!q.kbit_prep.value_or(false), ErrorKind::bad_input,
        "--kbit-prep yes with --quantize hqq: PEFT casts nothing of an HQQ base");
  refuse_all_linear(s, "HQQLinear");
}

void refuse_torchao(const models::Strategy& s) {
  const models::Quantization& q = *s.quantize;
  const std::string what = "--quantize " + std::string(q.storage->name);
  check(q.held_in == DType::uint8, ErrorKind::bad_input, [&] {
    return "--quant-storage " + std::string(name_of(q.held_in)) +
           ": bitsandbytes holds 4-bit values so (bnb_4bit_quant_storage), not those of " + what;
  });
  check(s.gpus == 1, ErrorKind::bad_input, [&] {
    return what + " on more than one GPU: torchao stops DDP and FSDP with \"Int8Tensor dispatch: " +
           "attempting to run unimplemented operator/function\" (aten.view; FSDP2: aten.split)";
  });
  check(s.transformers >= models::Release{5, 0, 0}, ErrorKind::unsupported, [&] {
    return what + " is modelled with Transformers 5 and torchao 0.18, not with " +
           models::text_of(s.transformers);
  });
  check(!q.kbit_prep.value_or(false), ErrorKind::unsupported,
        [&] { return "--kbit-prep yes with " + what + " is not modelled"; });
}

// fms-acceleration's, whose kernels come with adapters of their own (fused_adapters.cpp).
void refuse_fused_adapters(const models::Strategy& s) {
  const models::Quantization& q = *s.quantize;
  check(q.storage->gemm == models::PackedGemm::gptq || q.storage->name == "nf4-dq",
        ErrorKind::unsupported, [&] {
          return "--kernels fused --quantize " + std::string(q.storage->name) +
                 ": fms-acceleration's fused adapters unpack NF4 whose scales are packed too, and "
                 "GPTQ (nf4-dq, gptq, gptq-row)";
        });
  check(is_mixed(s.precision), ErrorKind::bad_input,
        "--kernels fused --quantize: fms-acceleration requires mixed precision, --precision "
        "bf16-mixed or fp16-mixed");
  check(s.param_dtype.value_or(DType::fp32) == low_dtype(s.precision) && !models::kbit_prepared(s),
        ErrorKind::unsupported, [&] {
          return "--kernels fused --quantize is modelled on weights loaded in what it computes in, "
                 "as fms-acceleration's benchmarks do: --param-dtype " +
                 std::string(name_of(low_dtype(s.precision))) + ", and no --kbit-prep";
        });
  check(!s.offload.any(), ErrorKind::unsupported,
        "--kernels fused --quantize with --offload is not modelled yet");
  check(s.data.zero < 2 || is_fsdp1(s), ErrorKind::unsupported,
        "--kernels fused --quantize with FSDP is modelled with --fsdp-version 1 alone: "
        "fms-acceleration has it ignore adapters");
}

// trl 0.24, models/utils.py, prepare_peft_model. Where parameters are sharded it prepares nothing,
// and casts nothing.
void refuse_casting(const models::Strategy& s) {
  if (!s.quantize->kbit_casting || s.data.zero >= 2) return;
  const std::string what = "--kbit-casting yes";
  check(models::kbit_prepared(s), ErrorKind::bad_input,
        what +
            " without --kbit-prep yes: TRL casts back what PEFT's "
            "prepare_model_for_kbit_training made fp32");
  check(s.precision == models::Precision::bf16_mixed, ErrorKind::bad_input, [&] {
    return what + " with --precision " + std::string(name_of(s.precision)) +
           ": TRL casts where bf16 is on alone (--precision bf16-mixed)";
  });
  check(s.quantize->storage->gemm == models::PackedGemm::dequantizes, ErrorKind::bad_input, [&] {
    return what + " with --quantize " + std::string(s.quantize->storage->name) +
           ": TRL casts 4-bit bases alone (is_loaded_in_4bit): nf4, nf4-dq, fp4";
  });
  check(s.lora && s.lora->kind == models::AdapterKind::lora && !s.lora->dora &&
            s.lora->modules_to_save.empty(),
        ErrorKind::unsupported,
        what + " with adapters other than LoRA's, DoRA or --modules-to-save is not modelled yet");
}

}  // namespace

// FSDP shards parameters of one floating dtype, and its policy casts them: packed values have to
// look like the rest.
void refuse_packed(const models::Strategy& s) {
  if (!s.quantize) return;
  const models::Quantization& q = *s.quantize;
  const bool sharded = s.data.zero >= 2, mixed = is_mixed(s.precision);
  const bool kbit = models::kbit_prepared(s);
  models::check_in_packages(*q.storage);
  if (q.storage->gemm == models::PackedGemm::int8) refuse_int8(s);
  if (q.storage->gemm == models::PackedGemm::gptq) refuse_gptq(s);
  if (q.storage->gemm == models::PackedGemm::awq) refuse_awq(s);
  if (q.storage->gemm == models::PackedGemm::hqq) refuse_hqq(s);
  if (q.storage->gemm == models::PackedGemm::torchao) refuse_torchao(s);
  if (s.kernels == models::Kernels::fused) refuse_fused_adapters(s);
  refuse_casting(s);
  // bitsandbytes puts a new parameter into the module in its first forward
  // (fix_4bit_weight_quant_state_from_module), which _flat_param.py refuses where it does not
  // reshard.
  check(!is_fsdp1(s) || s.data.zero == 3, ErrorKind::bad_input,
        "--quantize with --fsdp-version 1 --zero 2: PyTorch stops with \"FSDP does not support "
        "changing the parameters between forward and backward\"; --zero 3 runs");
  check(!is_fsdp1(s) || q.held_in != DType::uint8, ErrorKind::bad_input,
        "--quantize with --fsdp-version 1: PyTorch stops with \"Cannot flatten integer dtype "
        "tensors\" for packed values in uint8; --quant-storage bf16 shards them");
  check(
      !sharded || q.held_in != DType::uint8, ErrorKind::unsupported,
      "--quantize with FSDP: packed values in uint8 are not sharded (Accelerate leaves them out of "
      "FSDP2), which is not modelled yet; --quant-storage bf16 shards them");
  const DType low = low_dtype(s.precision);
  check(!sharded || !mixed || q.held_in == low, ErrorKind::bad_input, [&] {
    return "--quant-storage " + std::string(name_of(q.held_in)) +
           ": FSDP's policy would cast packed values to " + std::string(name_of(low)) +
           "; they have to be held in that";
  });
  check(!sharded || !s.data.fsdp_upcast.value_or(false), ErrorKind::bad_input,
        "--fsdp-upcast yes: Accelerate upcasts nothing where the base is packed");
  check(!kbit || !sharded, ErrorKind::unsupported,
        "--kbit-prep yes with FSDP is not modelled yet (TRL does not call it there)");
  check(!kbit || mixed, ErrorKind::unsupported,
        "--kbit-prep yes without autocast computes norms, attention and head in fp32, which is not "
        "modelled yet: --precision bf16-mixed or fp16-mixed");
  check(is_flash(s.attention) && s.recompute.kind != models::RecomputeKind::selective,
        ErrorKind::unsupported,
        "--quantize with --attention eager or math, or --recompute selective, is not modelled yet");
}

}  // namespace plimsoll::planner::pytorch
