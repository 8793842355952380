// What attention is given, and what runs it.
#pragma once

#include "models/block.h"
#include "planner/stacks/pytorch/saved.h"

namespace plimsoll::planner::pytorch {

// What executes attention.
//   flash: FlashAttention 2, or cuDNN (Rules::Sdpa); efficient: PyTorch's memory-efficient kernel
//   (CUTLASS); flex: flex_attention, compiled; math: SDPA's composite of GEMMs; eager:
//   Transformers' own.
enum class AttentionPath : std::uint8_t { flash, efficient, math, eager, flex };

// Learned keys and values in front of a layer's own, as the cache has them; both together, which it
// then has; and the gradients of these, of which the prefix's are views. `window`: a sliding
// layer's, of which the cache keeps a copy.
struct PrefixSaved {
  TensorId k = kNoTensor, v = kNoTensor, cached_k = kNoTensor, cached_v = kNoTensor;
  TensorId d_k = kNoTensor, d_v = kNoTensor, window = kNoTensor;
};

// Queries, keys and values as a layer hands them over.
struct AttentionInput {
  TensorId q = kNoTensor, k = kNoTensor, v = kNoTensor;
  DType dtype = DType::fp32, k_dtype = DType::fp32, v_dtype = DType::fp32;  // `dtype`: of q
  bool q_grad = true, k_grad = true, v_grad = true;
  // They are stored as [batch, heads, s, d], not [batch, s, heads, d]. `heads_first`: q.
  bool heads_first = false, k_heads_first = false, v_heads_first = false;
  models::EagerSoftmax softmax = models::EagerSoftmax::fp32;
  bool soft_cap = false;
  bool alibi = false;
  bool sinks = false, sinks_grad = false;
  bool grad() const { return q_grad || k_grad || v_grad || sinks_grad; }
};

}  // namespace plimsoll::planner::pytorch
