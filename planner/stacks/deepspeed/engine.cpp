#include "planner/stacks/deepspeed/engine.h"

#include "models/bitsandbytes.h"
#include "models/decisions/layer.h"
#include "models/decisions/mesh.h"
#include "models/lora.h"
#include "models/optimizers.h"
#include "models/run_names.h"
#include "models/storages.h"

namespace plimsoll::planner::deepspeed {

using models::OptimizerImpl;
using models::Precision;

namespace {

DType model_dtype(Precision precision) {
  switch (precision) {
    case Precision::bf16_mixed:
    case Precision::bf16:
      return DType::bf16;
    case Precision::fp16_mixed:
      return DType::fp16;
    case Precision::fp32:
      return DType::fp32;
    case Precision::fp16:
      break;
    case Precision::fp8_mixed:
      fail(ErrorKind::unsupported, "--stack deepspeed: --precision fp8-mixed is not modelled yet");
  }
  fail(ErrorKind::unsupported,
       "--stack deepspeed: --precision fp16 is not modelled (DeepSpeed has 16-bit masters with its "
       "offloaded optimizer alone); fp16-mixed is");
}

void refuse_optimizer(const models::Strategy& s) {
  models::check_optimizer(s);
  const models::OptimizerRule& rule = models::rule_of(s.optimizer);
  const char* const torch = rule.torch.package;
  check(torch == nullptr || s.optimizer_impl.value_or(OptimizerImpl::fused) == OptimizerImpl::fused,
        ErrorKind::bad_input, [&] {
          return "--optimizer-impl: torch.optim has no " + std::string(rule.name) +
                 "; DeepSpeed's own kernel is fused";
        });
  const char* const why = rule.deepspeed.refusal_unsharded;
  check(s.data.zero > 0 || why == nullptr, ErrorKind::unsupported, [&] {
    return "--stack deepspeed: --optimizer " + std::string(rule.name) + " with --zero 0 " + why;
  });
}

// The engine casts the whole module (engine.py, _configure_distributed_model): what holds packed
// values in floats of another dtype is cast with it, value by value.
void refuse_packed(const models::Strategy& s) {
  const models::Quantization& q = *s.quantize;
  const std::string what = "--stack deepspeed: --quantize " + std::string(q.storage->name);
  const DType model = model_dtype(s.precision);
  models::check_in_packages(*q.storage);
  check(models::packs_with_bitsandbytes(*q.storage), ErrorKind::unsupported, [&] {
    return what +
           " is not modelled yet; bases that bitsandbytes packs are (nf4, nf4-dq, fp4, int8)";
  });
  check(model != DType::fp32, ErrorKind::unsupported,
        [&] { return what + " with --precision fp32 is not modelled yet"; });
  check(q.held_in == DType::uint8 || q.held_in == model, ErrorKind::bad_input, [&] {
    return "--quant-storage " + std::string(name_of(q.held_in)) +
           ": DeepSpeed casts all floats of the module to " + std::string(name_of(model)) +
           ", packed values too, and bitsandbytes stops; uint8 or " + std::string(name_of(model)) +
           " stay as they are";
  });
}

// Of PEFT's options those that were run under the engine are planned.
void refuse_adapters(const models::Strategy& s) {
  const models::Lora& lora = *s.lora;
  using models::AdapterKind;
  check(lora.kind != AdapterKind::vera, ErrorKind::bad_input,
        "--adapter vera with --stack deepspeed: the engine casts its vectors and not the matrices "
        "they share, and PyTorch stops with \"expected mat1 and mat2 to have the same dtype\"");
  const char* const option =
      s.data.zero == 3           ? models::further_option(lora)
      : lora.dora                ? "--use-dora"
      : lora.bias                ? "--lora-bias"
      : !lora.parameters.empty() ? "--target-parameters"
      : lora.kind == AdapterKind::p_tuning || lora.kind == AdapterKind::prefix_tuning
          ? models::further_option(lora)
          : nullptr;
  check(option == nullptr, ErrorKind::unsupported, [&] {
    return std::string(option) + (s.data.zero == 3 ? " with --zero 3" : "") +
           " is not modelled yet with --stack deepspeed (pytorch has it)";
  });
}

void refuse(const models::Strategy& s) {
  const auto unsupported = [](bool bad, const char* why) {
    check(!bad, ErrorKind::unsupported, std::string("--stack deepspeed: ") + why);
  };
  check(s.device == models::Device::cuda, ErrorKind::bad_input,
        "--device cpu is for --stack plimsoll");
  unsupported(s.data.shard_group > 0 && s.data.shard_group != s.gpus,
              "--shard-group: MiCS was removed from DeepSpeed 0.19, and ZeRO++'s secondary "
              "partition is not modelled yet");
  if (s.lora) refuse_adapters(s);
  if (s.quantize) refuse_packed(s);
  refuse_optimizer(s);
  check(s.data.zero < 3 || s.transformers == models::kTransformers, ErrorKind::unsupported, [&] {
    return "--stack deepspeed: --transformers-version " + models::text_of(s.transformers) +
           " with --zero 3, whose gathers follow the modules, is not modelled yet; " +
           models::text_of(models::kTransformers) + " is, and others with --zero 0, 1 and 2";
  });
  check(s.kernels == models::Kernels::eager || s.kernels == models::Kernels::liger,
        ErrorKind::unsupported, [&] {
          return "--stack deepspeed: --kernels " + std::string(models::name_of(s.kernels)) +
                 " is not modelled yet (eager and liger are)";
        });
  unsupported(s.data.zero == 1 && s.grad_dtype && *s.grad_dtype == DType::fp32 &&
                  s.precision != Precision::fp32,
              "--grad-dtype fp32 with --zero 1 runs BF16_Optimizer or per-parameter fp32 "
              "accumulators, which are not modelled yet");
  unsupported(
      s.data.reduce_dtype.has_value(),
      "--reduce-dtype (communication_data_type in another dtype than the gradients') is not "
      "modelled yet; plimsoll has it, and FSDP (--stack pytorch with --zero 2 or 3)");
  unsupported(s.optimizer_in_backward, "--optimizer-in-backward is PyTorch's: --stack pytorch");
  unsupported(s.recompute.kind == models::RecomputeKind::ops,
              "--recompute ops is modelled on pytorch alone");
  unsupported(!s.data.deepspeed.contiguous_gradients,
              "contiguous_gradients false is not modelled yet");
  unsupported(!s.data.deepspeed.reduce_scatter, "reduce_scatter false is not modelled yet");
  unsupported(s.precision == Precision::bf16 && s.data.zero == 0,
              "--precision bf16 (no fp32 masters) needs --zero 1, 2 or 3");
  check(!(s.master_weights && !*s.master_weights && s.precision != Precision::bf16),
        ErrorKind::bad_input,
        "--master-weights no on deepspeed is --precision bf16 "
        "(bf16_master_weights_and_grads, bf16_optimizer_states)");
}

// What ZeRO-Offload takes, by the engine's own checks (engine.py, _configure_zero_optimizer and
// _configure_basic_optimizer; zero/config.py).
void refuse_offload(const models::Strategy& s) {
  const models::Offload& offload = s.offload;
  const auto refuse = [](bool bad, ErrorKind kind, const std::string& why) {
    check(!bad, kind, "--stack deepspeed: --offload " + why);
  };
  refuse(offload.activations, ErrorKind::unsupported, "activations is not modelled yet");
  refuse(offload.gradients, ErrorKind::bad_input,
         "gradients: DeepSpeed takes them with the states (--offload optimizer)");
  refuse(offload.optimizer && s.data.zero == 0, ErrorKind::bad_input,
         "optimizer needs --zero 1, 2 or 3 (offload_optimizer)");
  refuse(offload.params && s.data.zero != 3, ErrorKind::bad_input,
         "params needs --zero 3 (offload_param)");
  if (!offload.any()) return;
  check(!offload.nvme || s.data.zero == 3, ErrorKind::bad_input,
        "--stack deepspeed: --offload-to nvme needs --zero 3 (ZeRO-Infinity)");
  check(!offload.nvme || !s.quantize, ErrorKind::unsupported,
        "--stack deepspeed: --offload-to nvme with --quantize is not modelled yet");
  refuse(s.grad_dtype && *s.grad_dtype == DType::fp32 && s.precision != Precision::fp32,
         ErrorKind::unsupported, "with --grad-dtype fp32 is not modelled yet");
  refuse(s.precision == Precision::bf16, ErrorKind::unsupported,
         "with --precision bf16 (no fp32 masters) is not modelled yet");
  if (!offload.optimizer) return;
  refuse(s.optimizer != models::Optimizer::adamw, ErrorKind::unsupported,
         "optimizer with another optimizer than adamw (DeepSpeedCPUAdam) is not modelled yet");
  refuse(s.optimizer_impl && *s.optimizer_impl != OptimizerImpl::fused, ErrorKind::bad_input,
         "optimizer steps with DeepSpeedCPUAdam (zero_force_ds_cpu_optimizer): "
         "--optimizer-impl must be fused, or left out");
}

OptimizerWrapper wrapper_of(const models::Strategy& s, DType model) {
  if (s.data.zero == 3) return OptimizerWrapper::stage3;
  if (s.data.zero >= 1) return OptimizerWrapper::stage_1_and_2;
  if (model == DType::fp32) return OptimizerWrapper::plain;
  const bool fused = models::rule_of(s.optimizer).deepspeed.steps_flat &&
                     s.optimizer_impl.value_or(OptimizerImpl::fused) == OptimizerImpl::fused;
  return fused ? OptimizerWrapper::fused : OptimizerWrapper::unfused;
}

}  // namespace

Engine engine_of(const models::Strategy& s) {
  refuse(s);
  refuse_offload(s);
  Engine e;
  e.stage = s.data.zero;
  e.group = models::decisions::mesh_of(s).data();
  e.ranks = e.group.ranks;
  e.model = model_dtype(s.precision);
  e.accumulation = s.grad_dtype.value_or(e.model);
  check(e.stage != 0 || e.accumulation == e.model, ErrorKind::bad_input,
        "--grad-dtype: DeepSpeed accumulates in the model's dtype with --zero 0");
  e.wrapper = wrapper_of(s, e.model);
  // Pure bf16: bf16_master_weights_and_grads with bf16_optimizer_states; the partition is cloned
  // in the same dtype all the same.
  e.state = s.precision == Precision::bf16 ? DType::bf16 : DType::fp32;
  // engine.py casts the whole module, but not one whose parameters are sharded already, which a
  // packed base's are not: what PEFT and TRL cast to fp32 is 16 bits again.
  e.adapters = s.lora && s.data.zero == 3 && !s.quantize ? s.lora->dtype : e.model;
  if (s.quantize) {
    e.packed = s.quantize->held_in;
    e.packed_copy = s.quantize->storage->gemm == models::PackedGemm::int8 ? PackedCopy::module
                                                                          : PackedCopy::graph;
  }
  e.holds_frozen = e.stage == 3 && s.lora && models::decisions::reentrant_checkpoints(s);
  e.options = s.data.deepspeed;
  e.offload = s.offload;
  e.overlap = e.options.overlap_comm.value_or(e.stage == 3);
  // Backward reaches the end of the flat buffer first: the last rank keeps its gradients longest.
  // Stage 1 reduces from the front, when all gradients are there.
  e.rank = e.stage == 2 ? e.ranks - 1 : 0;
  return e;
}

models::Strategy module_strategy(const models::Strategy& s, const Engine& e) {
  models::Strategy out = s;
  out.precision = e.model == DType::bf16   ? Precision::bf16
                  : e.model == DType::fp16 ? Precision::fp16
                                           : Precision::fp32;
  if (!out.quantize) out.param_dtype.reset();  // what a base was packed from stays so
  out.grad_dtype.reset();
  out.gpus = 1;
  out.data = {};
  out.offload = {};
  if (out.lora) out.lora->dtype = e.adapters;
  if (out.quantize) {
    out.quantize->kbit_prep = false;
    out.quantize->kbit_casting = false;
  }
  return out;
}

}  // namespace plimsoll::planner::deepspeed
