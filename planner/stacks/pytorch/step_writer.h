// Writes the training step of eager PyTorch with Hugging Face Transformers, op by op.
//
// What an op saves and allocates was read off the models' source (transformers 5.17) and off traces
// of every storage that a real step allocates and frees (tests/golden/traces; torch 2.11), which
// the tests compare with this writer byte for byte. Several small kernels that always follow one
// another are one op here: `scratch` is what they need on top of the op's operands at their highest
// moment, derived above each. Two kinds of things are not visible in a CPU trace and are taken from
// CUDA's sources: dropout's 1-byte mask and flash attention's backward workspace.
#pragma once

#include <array>

#include "models/names.h"
#include "planner/model_parts.h"
#include "planner/program_builder.h"
#include "planner/stacks/pytorch/regime.h"

namespace plimsoll::planner::pytorch {

using models::Category;
using models::kNoTensor;
using models::ModuleNames;
using models::Phase;
using models::TensorId;

// What differs between a real CUDA run and the CPU runs that the tests compare with.
struct Rules {
  std::int64_t granularity = 512;  // CUDACachingAllocator's kMinBlockSize
  // What runs behind scaled_dot_product_attention; the CPU kernel has no workspace of its own.
  enum class Sdpa { cpu, flash, cudnn } sdpa = Sdpa::flash;
  std::int64_t batch_tensors = 3;  // int64 tensors of a batch: input_ids, labels, attention_mask
  // Parameters and states one by one, not one sum a layer: for the allocator's replay.
  bool each_parameter = false;
  Bytes blas_workspace;  // cuBLAS's, inside the caching allocator, of all threads
};

// A tensor, or the neighbouring layer's.
struct Ref {
  TensorId tensor = kNoTensor;
  int delta = 0;
  TensorId beyond = kNoTensor;
};

struct NormSaved {
  TensorId input_fp32 = kNoTensor, normalized = kNoTensor, statistics = kNoTensor, out = kNoTensor;
};
struct LinearSaved {
  TensorId input = kNoTensor;  // what the product read: the cast copy or the input itself
  TensorId input_cast = kNoTensor, weight_cast = kNoTensor, out = kNoTensor;
  TensorId lora_input = kNoTensor, lora_a_out = kNoTensor, lora_casts = kNoTensor,
           lora_mask = kNoTensor;
};
// What one layer's forward leaves to its backward.
struct LayerSaved {
  NormSaved input_norm, post_norm, q_norm, k_norm;
  LinearSaved q, k, v, o, gate, up, down;
  TensorId q_rotated = kNoTensor, k_rotated = kNoTensor, q_cast = kNoTensor, k_cast = kNoTensor,
           lse = kNoTensor, seed = kNoTensor, offset = kNoTensor, attention = kNoTensor,
           probabilities = kNoTensor, middle = kNoTensor, activated = kNoTensor,
           product = kNoTensor;
  std::array<TensorId, 4> gelu{kNoTensor, kNoTensor, kNoTensor, kNoTensor};
  TensorId attention_mask = kNoTensor, residual_mask = kNoTensor, mlp_mask = kNoTensor;
};

}  // namespace plimsoll::planner::pytorch
