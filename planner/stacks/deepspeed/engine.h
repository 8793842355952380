// What DeepSpeed's engine makes of a strategy.
//
// Source: deepspeed 0.19.8, runtime/engine.py and runtime/zero/; every buffer below was read there
// and then found in the history of PyTorch's allocator under the real engine
// (tests/golden/deepspeed_runs.json, tools/oracle/deepspeed_measure.py).
#pragma once

#include "models/decisions/mesh.h"
#include "models/run_spec.h"

namespace plimsoll::planner::deepspeed {

// _do_optimizer_sanity_check and _configure_fp16_optimizer.
enum class OptimizerWrapper {
  plain,  // stage 0 in fp32: the optimizer itself
  fused,  // stage 0, 16 bits, FusedAdam: FP16_Optimizer, flat fp32 masters
  unfused,  // stage 0, 16 bits, another optimizer: FP16_UnfusedOptimizer, masters one by one
  stage_1_and_2,  // DeepSpeedZeroOptimizer
  stage3,  // DeepSpeedZeroOptimizer_Stage3
};

// Who has a gathered copy of a packed weight when its module's forward is over (bitsandbytes
// 0.50.2).
enum class PackedCopy {
  nobody,
  graph,  // 4 bits: an attribute of the autograd node (MatMul4Bit, ctx.tensors), until the loss
          // goes
  module,  // int8: nobody, but the module has a copy of its own for good (MatmulLtState.CB)
};

struct Engine {
  int stage = 0;
  OptimizerWrapper wrapper = OptimizerWrapper::plain;
  std::int64_t ranks = 1;
  models::decisions::AxisGroup group;  // they: all that see other rows, whatever the stage
  // The rank that is planned: the one that holds most, unless a test asks for another.
  std::int64_t rank = 0;
  DType model = DType::bf16;  // of parameters, gradients, activations
  DType accumulation = DType::bf16;  // data_types.grad_accum_dtype
  // As the engine leaves them: adapters', and what holds packed weights.
  DType adapters = DType::bf16, packed = DType::uint8;
  PackedCopy packed_copy = PackedCopy::nobody;
  // Frozen weights that stay gathered behind a reentrant checkpoint's second forward, until the
  // backward ends (update_recompute_parameters).
  bool holds_frozen = false;
  DType state = DType::fp32;  // of masters, step gradients and moments
  bool overlap = false;  // overlap_comm
  models::Offload offload;
  models::DeepSpeedOptions options;

  // In place of nn.Linear's (runtime/zero/linear.py); Conv1D stays torch's.
  bool has_own_linear() const { return stage == 3; }
  // What is gathered follows the trace of modules, layer by layer (gather_by_layer.cpp).
  bool gathers_by_layer() const {
    return stage == 3 && (packed_copy != PackedCopy::nobody || holds_frozen);
  }
  bool has_fp32_partition_grads() const { return stage == 2 && accumulation != model; }
};

// engine.py, MEMORY_OPT_ALLREDUCE_SIZE: elements of one reduction of stage 0, whatever
// reduce_bucket_size is.
inline constexpr std::int64_t kPlainBucket = 500'000'000;

// Throws Error{unsupported} or {bad_input} naming the option.
Engine engine_of(const models::Strategy& strategy);

// The strategy as the modules see it: no autocast, one dtype for all, no sharding by PyTorch.
models::Strategy module_strategy(const models::Strategy& strategy, const Engine& engine);

}  // namespace plimsoll::planner::deepspeed
