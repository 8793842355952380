// Which dtype everything has when PyTorch trains, by precision and data parallelism; and whose
// kernels run.
#pragma once

#include "models/decoder.h"
#include "models/run_spec.h"
#include "planner/stacks/pytorch/kernel_patch.h"

namespace plimsoll::planner::pytorch {

struct Regime {
  DType stored = DType::fp32;  // parameter (shard) in memory, and its optimizer states
  DType weight = DType::fp32;  // what modules see; differs from stored under FSDP's policy
  DType compute = DType::fp32;  // GEMMs; differs from weight under autocast
  DType norm = DType::fp32;  // weights of norms as modules see them
  DType embedded = DType::fp32;  // what the first layer reads, and the rotary tables
  DType residual = DType::fp32;  // residual stream behind the first layer
  DType reduce = DType::fp32;  // dtype of FSDP's reduce-scatter
  DType adapter = DType::fp32;  // LoRA's A and B as modules see them
  DType adapter_input = DType::fp32;  // what their input is cast to
  DType unpacked = DType::fp32;  // what backwards make of a packed weight: as it was loaded
  // Each node of a norm's backward is an op: hooks bring what it saved (saved_hooks.h).
  bool by_node = false;
  bool autocast = false;  // torch.autocast is on, whether or not it finds anything to cast
  KernelPatch patch;

  bool casts_weights() const { return weight != compute; }
  // The dtype in which a GEMM with a weight of dtype `of` runs.
  DType gemm_dtype(DType of) const { return autocast ? compute : of; }
};

// Whether hooks take what every node of the layers saves: activations on the host, no checkpoints.
bool hooks_take_all(const models::Strategy& strategy);

// What a mixed or 16-bit precision computes in.
DType low_dtype(models::Precision precision);

// Type promotion among the floating dtypes that meet here.
constexpr DType promoted(DType a, DType b) {
  return a == b ? a : DType::fp32;
}

// Sources: torch.autocast keeps fp32 weights and residuals and casts operands of GEMMs;
// FSDP casts parameters, so the model runs in the low dtype (torch/distributed/fsdp/_fully_shard/
// _fsdp_api.py, MixedPrecisionPolicy); Accelerate stores trainable parameters in fp32 under FSDP
// with mixed precision (accelerate 1.15, utils/fsdp_utils.py, fsdp2_prepare_model) and reduces in
// the low dtype (utils/dataclasses.py, set_mixed_precision).
// Accelerate leaves it at that where parameters are packed (model_has_params4bit).
Regime regime_of(const models::Strategy& strategy, bool sharded, bool autocast_with_fsdp);

// The stream's dtypes, by what the model's norms return. It begins as the embedding's result, or a
// norm's (BLOOM, BERT), which autocast computes in fp32. A packed linear returns the dtype that it
// was given (bitsandbytes, nn/modules.py, Linear4bit.forward): where that was a norm's fp32, the
// first MLP makes the stream fp32; and so does the first sum of bf16 and fp16.
void set_stream(Regime& regime, const models::Strategy& strategy, const models::Decoder& decoder);

// Llama's RMSNorm multiplies the weight with x in x's own dtype, OLMo 2's casts back to it;
// autocast runs layer_norm in fp32.
DType norm_dtype(models::NormKind kind, DType input, const Regime& regime);

}  // namespace plimsoll::planner::pytorch
