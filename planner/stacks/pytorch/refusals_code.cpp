// What is not modelled of models that are not Transformers' (--model-code).
#include <algorithm>
#include <array>
#include <string>

#include "models/decisions/mesh.h"
#include "models/lora.h"
#include "models/recompute.h"
#include "models/run_names.h"
#include "models/storages.h"
#include "planner/stacks/pytorch/refusals.h"
#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

using models::RecomputeKind;
using models::decisions::mesh_of;

namespace {

struct Refusal {
  models::ModelCode code;
  void operator()(bool it_is, const char* what) const {
    check(!it_is, ErrorKind::unsupported,
          [&] { return "--model-code " + std::string(models::name_of(code)) + " " + what; });
  }
};

// torchtitan's own code: as its parallelize_llama.py and train.py run it.
void refuse_torchtitan(const models::Strategy& s, const models::Batch& batch) {
  const Refusal refuse_if{s.code};
  using models::RecomputeKind;
  refuse_if(s.data.zero != 3 || s.data.fsdp_version != 2 || !mesh_of(s).communicates(),
            "is modelled with FSDP2's full shard alone (--gpus N --zero 3)");
  refuse_if((s.precision != models::Precision::bf16_mixed &&
             s.precision != models::Precision::fp8_mixed) ||
                s.param_dtype.value_or(DType::fp32) != DType::fp32,
            "is modelled with --precision bf16-mixed on fp32 weights alone");
  refuse_if(s.kernels != models::Kernels::eager || s.loss != models::Loss::full ||
                s.attention != models::Attention::flash,
            "runs its own kernels: --kernels eager, --loss full, --attention flash");
  refuse_if(s.lora || s.quantize || !s.freeze.empty() || !s.train.empty(),
            "trains all parameters: neither adapters nor --freeze");
  refuse_if(s.offload.any(), "with --offload is not modelled yet");
  refuse_if(s.use_reentrant.value_or(false), "has no reentrant checkpoints");
  refuse_if(batch.grad_accum > 1,
            "with --grad-accum is not modelled yet: it reduces every micro-step");
  refuse_if(s.recompute.kind != RecomputeKind::none && s.recompute.kind != RecomputeKind::full &&
                s.recompute.kind != RecomputeKind::nth &&
                !models::keeps_torchtitan_ops(s.recompute),
            "is modelled with --recompute none, full, nth:N or ops:torchtitan");
  if (s.tp == 1) return;
  refuse_if(s.code == models::ModelCode::torchtitan_2024_03,
            "with --tp is not modelled (torchtitan@2024-12 and torchtitan@0.2.2 are)");
  refuse_if(!mesh_of(s).shards(),
            "with --tp is modelled beside FSDP2's shards alone: --gpus is to be more than --tp");
  refuse_if(s.compile != models::Compile::no, "with --tp and --compile is not modelled yet");
  refuse_if(s.precision == models::Precision::fp8_mixed,
            "with --tp and --precision fp8-mixed is not modelled yet");
  check(batch.seq_len % s.tp == 0, ErrorKind::bad_input, [&] {
    return "--seq-len " + std::to_string(batch.seq_len) + ": does not divide by --tp " +
           std::to_string(s.tp) + ", which shards each sequence between the blocks";
  });
}

// lora_attn_modules and apply_lora_to_mlp of torchtune's builders.
void refuse_torchtune_adapters(const models::ModelSpec& model, const models::Strategy& s,
                               const Refusal& refuse_if) {
  const models::Lora& lora = *s.lora;
  refuse_if(lora.dtype != DType::bf16,
            "has adapters in the model's dtype: --adapter-dtype bf16 (--trainer torchtune has it)");
  refuse_if(lora.dora, "with --use-dora (its DoRALinear) is not modelled yet");
  refuse_if(lora.bias || !lora.modules_to_save.empty(),
            "trains adapters alone: neither --lora-bias nor --modules-to-save");
  std::size_t attention = 0, mlp = 0, others = 0;
  for (const models::LoraModule& module : models::lora_modules(model, lora)) {
    const bool in_layer = !model.parameters[module.base].ranges.empty();
    const bool in_mlp = module.name.find(".mlp.") != std::string::npos;
    ++(!in_layer ? others : in_mlp ? mlp : attention);
  }
  refuse_if(attention == 0 || others > 0 || (mlp > 0 && mlp < 3),
            "adapts modules of the attention, and all of the MLP or none of it "
            "(lora_attn_modules, apply_lora_to_mlp); the head (apply_lora_to_output) is not "
            "modelled yet");
}

// torchtune's recipes: full_finetune_single_device.py, full_finetune_distributed.py,
// lora_finetune_single_device.py, lora_finetune_distributed.py.
void refuse_torchtune(const models::ModelSpec& model, const models::Strategy& s,
                      const models::Batch& batch) {
  const Refusal refuse_if{s.code};
  const bool several = mesh_of(s).communicates();
  refuse_if(several ? s.data.zero != 3 || s.data.fsdp_version != 2 : s.data.zero != 0,
            "is modelled on one GPU (--gpus 1 --zero 0) and with FSDP2's full shard (--gpus N "
            "--zero 3); it has no DDP");
  refuse_if(s.data.shard_group != 0, "with --shard-group is not modelled yet");
  refuse_if(s.precision != models::Precision::bf16 ||
                s.param_dtype.value_or(DType::bf16) != DType::bf16 ||
                s.grad_dtype.value_or(DType::bf16) != DType::bf16 ||
                s.data.reduce_dtype.value_or(DType::bf16) != DType::bf16,
            "is modelled with --precision bf16 alone, which is all in bf16");
  refuse_if(s.quantize.has_value(),
            "with --quantize: torchao's NF4Tensor, which its QLoRA packs the base in, is not "
            "modelled");
  refuse_if(s.kernels != models::Kernels::eager || s.loss == models::Loss::fused ||
                s.attention != models::Attention::flash,
            "runs its own kernels: --kernels eager, --attention flash, --loss full or chunked");
  refuse_if(!s.freeze.empty() || !s.train.empty(),
            "trains all parameters, or adapters: no --freeze");
  refuse_if(s.offload.params || s.offload.optimizer,
            "with --offload (fsdp_cpu_offload) is not modelled yet");
  refuse_if(s.hold_outputs, "lets go of the logits: no --hold-outputs");
  refuse_if(s.use_reentrant.value_or(false), "has no reentrant checkpoints");
  refuse_if(several && batch.grad_accum > 1,
            "with --grad-accum on several GPUs is not modelled yet: it reduces every micro-step");
  refuse_if(s.recompute.kind != RecomputeKind::none && s.recompute.kind != RecomputeKind::full,
            "is modelled with --recompute none and full");
  refuse_if(s.compile != models::Compile::no, "with --compile is not modelled yet");
  if (s.lora) refuse_torchtune_adapters(model, s, refuse_if);
}

// Adapters as the switches of finetune/lora.py place them (lora_query, lora_key, …).
void refuse_litgpt_adapters(const models::ModelSpec& model, const models::Strategy& s,
                            const Refusal& refuse_if) {
  const models::Lora& lora = *s.lora;
  refuse_if(lora.kind != models::AdapterKind::lora,
            "with --adapter other than lora (its Adapter and AdapterV2) is not modelled yet");
  refuse_if(lora.dtype != DType::bf16,
            "has adapters in the model's dtype: --adapter-dtype bf16 (--trainer litgpt has it)");
  refuse_if(models::further_option(lora) != nullptr || !lora.modules_to_save.empty(),
            "trains A and B alone: no --lora-bias, --use-dora, --adapters or --modules-to-save");
  std::size_t in_mlp = 0;
  for (const models::LoraModule& module : models::lora_modules(model, lora)) {
    refuse_if(model.parameters[module.base].module == models::ModuleKind::head,
              "with an adapter of the head (lora_head) is not modelled yet");
    const models::ParameterRow& base = model.parameters[module.base];
    refuse_if(base.module != models::ModuleKind::linear || module.a.ranges != base.ranges,
              "adapts q_proj, k_proj, v_proj, o_proj and the MLP of all layers (lora_query and its "
              "kin)");
    in_mlp += module.name.find(".mlp.") != std::string::npos;
  }
  refuse_if(in_mlp != 0 && in_mlp != 3, "adapts all of the MLP or none of it (lora_mlp)");
}

// pyproject.toml of 0.3.0 and 0.4.13.
constexpr models::Release kOfLitgpt2024{0, 42, 0};

// finetune/full.py, finetune/lora.py, in bf16-true on one GPU.
void refuse_litgpt(const models::ModelSpec& model, const models::Strategy& s,
                   const models::Batch& batch) {
  const Refusal refuse_if{s.code};
  refuse_if(mesh_of(s).communicates() || s.data.zero != 0,
            "is modelled on one GPU (--gpus 1 --zero 0); its FSDP is not yet");
  refuse_if(s.precision != models::Precision::bf16 ||
                s.param_dtype.value_or(DType::bf16) != DType::bf16 ||
                s.grad_dtype.value_or(DType::bf16) != DType::bf16,
            "is modelled with --precision bf16 alone (bf16-true)");
  refuse_if(s.quantize && (!s.lora || s.quantize->storage->gemm != models::PackedGemm::dequantizes),
            "packs a base under adapters in four bits: --quantize nf4, nf4-dq or fp4 with "
            "--lora-rank (bnb.nf4 and its kin)");
  refuse_if(s.quantize && models::is_litgpt_of_2024(s.code) && s.bitsandbytes != kOfLitgpt2024,
            "packs with bitsandbytes 0.42.0, which it asks for: --bitsandbytes-version 0.42");
  refuse_if(models::kbit_prepared(s), "has no --kbit-prep: nothing is cast to fp32");
  refuse_if(s.kernels != models::Kernels::eager || s.attention != models::Attention::flash,
            "runs its own kernels: --kernels eager, --attention flash");
  refuse_if(s.loss != (s.lora ? models::Loss::chunked : models::Loss::full),
            s.lora ? "with adapters runs the head on 128 tokens at a time: --loss chunked "
                     "(finetune/lora.py, lm_head_chunk_size)"
                   : "with all parameters trained runs the head at once: --loss full "
                     "(finetune/full.py)");
  refuse_if(s.lora && batch.seq_len % kLossRows == 1,
            "with --seq-len of 128 n + 1 is not modelled: the head's last part has no token to "
            "predict");
  refuse_if(!s.freeze.empty() || !s.train.empty(),
            "trains all parameters, or adapters: no --freeze");
  refuse_if(s.offload.any(), "with --offload is not modelled yet");
  refuse_if(s.hold_outputs, "holds the logits from step to step: no --hold-outputs");
  refuse_if(s.recompute.kind != RecomputeKind::none,
            "has no checkpoints on one GPU: --recompute none");
  refuse_if(s.optimizer_in_backward, "with --optimizer-in-backward is not modelled");
  refuse_if(s.compile != models::Compile::no, "with --compile is not modelled yet");
  if (s.lora) refuse_litgpt_adapters(model, s, refuse_if);
}

}  // namespace

void refuse_code(const models::ModelSpec& model, const models::Strategy& s,
                 const models::Batch& batch) {
  check(models::is_torchtitan(s.code) || !models::keeps_torchtitan_ops(s.recompute),
        ErrorKind::unsupported,
        "--recompute ops:torchtitan is modelled with torchtitan's own model alone: --model-code "
        "torchtitan@0.2.2, or --trainer torchtitan");
  if (models::is_torchtitan(s.code)) refuse_torchtitan(s, batch);
  if (models::is_torchtune(s.code)) refuse_torchtune(model, s, batch);
  if (models::is_litgpt(s.code)) refuse_litgpt(model, s, batch);
}

}  // namespace plimsoll::planner::pytorch
