// Which dtype everything has when PyTorch trains, by precision and data parallelism.
#pragma once

#include "models/run_spec.h"

namespace plimsoll::planner::pytorch {

// `shards` parameters are what lives between steps; `weight` is what modules see during the step.
struct Regime {
  DType stored = DType::fp32;  // parameter (shard) in memory, and its optimizer states
  DType weight = DType::fp32;  // differs from stored under FSDP's MixedPrecisionPolicy
  DType compute = DType::fp32;  // matrix products; differs from weight under autocast
  DType residual = DType::fp32;  // residual stream
  DType reduce = DType::fp32;  // dtype of FSDP's reduce-scatter
  bool autocast() const { return weight != compute; }
  // HF's RMSNorm computes in fp32 and casts back: nothing to cast where the stream is fp32.
  bool upcasts_norm() const { return residual != DType::fp32; }
};

// Sources: torch.autocast keeps fp32 weights and residuals and casts operands of matrix products;
// FSDP casts parameters, so the model runs in the low dtype (torch/distributed/fsdp/_fully_shard/
// _fsdp_api.py, MixedPrecisionPolicy); Accelerate stores trainable parameters in fp32 under FSDP
// with mixed precision (accelerate 1.15, utils/fsdp_utils.py, fsdp2_prepare_model) and reduces in
// the low dtype (utils/dataclasses.py, set_mixed_precision).
Regime regime_of(const models::Strategy& strategy, bool sharded);

}  // namespace plimsoll::planner::pytorch
