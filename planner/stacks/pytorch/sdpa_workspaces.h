// What two kernels of scaled_dot_product_attention ask the allocator for beside their operands:
// cuDNN's and the memory-efficient one. tests/golden/attention_scratch.json has both as PyTorch
// 2.11 asks for them, on every compute capability that is told apart here.
#pragma once

#include <cstdint>

#include "planner/program/symbolic_bytes.h"
#include "planner/stacks/pytorch/kernels.h"

namespace plimsoll::planner::pytorch {

struct SdpaShape {
  SymInt sequences, length, keys;
  std::int64_t heads = 1, head_dim = 64;
  bool groups = false;  // fewer key heads than query heads
  bool dropout = false;
  bool half = true;  // 16 bits; else fp32
};

// Whether cuDNN's attention has a kernel (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp,
// can_use_cudnn_attention), in 16 bits: from compute capability 8.0 on, heads of a multiple of 8
// up to 128, on 9.0 up to 256, of more than one token.
bool cudnn_has(std::int64_t head_dim, SymInt keys, const Processors& gpu);

// A plan's workspace, which ATen/native/cudnn/MHA.cpp takes as one block.
SymBytes cudnn_forward(const SdpaShape& of, const Processors& gpu);
SymBytes cudnn_backward(const SdpaShape& of, const Processors& gpu);

// Of heads wider than 128, in 16 bits: the result in fp32 (mem_eff_attention/kernel_forward.h,
// kNeedsOutputAccumulatorBuffer).
SymBytes efficient_forward(const SdpaShape& of);
// Sums of gradients in fp32 (mem_eff_attention/kernel_backward.h, workspace_size).
SymBytes efficient_backward(const SdpaShape& of, const Processors& gpu);

}  // namespace plimsoll::planner::pytorch
