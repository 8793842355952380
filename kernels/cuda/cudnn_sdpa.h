// The graphs of attention as cuDNN's fused engines recognize them: the operations, data types and
// virtual tensors of NVIDIA's cudnn-frontend (include/cudnn_frontend/node/
// scaled_dot_product_flash_attention.h, version 1.32, sdpa and sdpa_backward with a causal mask,
// for cuDNN 9.19). Another order or shape is another pattern, for which there is no engine.
#pragma once

#include <functional>
#include <optional>
#include <tuple>

#include "kernels/cuda/cudnn_graph.h"

namespace plimsoll::kernels::cuda {

// Lengths and strides of one call: `sequences` of [heads, length, head_dim].
struct SdpaShape {
  cudnnDataType_t dtype = CUDNN_DATA_BFLOAT16;
  std::int64_t sequences = 1, heads = 1, kv_heads = 1, length = 1, head_dim = 1;
  // Elements from one token to the next.
  std::int64_t q = 0, k = 0, v = 0, out = 0;
  std::int64_t d_out = 0, d_q = 0, d_k = 0, d_v = 0;  // 0 forward

  auto comparable() const {
    return std::tuple(dtype, sequences, heads, kv_heads, length, head_dim, q, k, v, out, d_out, d_q,
                      d_k, d_v);
  }
  bool operator<(const SdpaShape& other) const { return comparable() < other.comparable(); }
};

// Names of tensors in a graph and its variant pack.
enum SdpaUid : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLogsumexp,  // [sequences, heads, length]
  kDOut,
  kDQ,
  kDK,
  kDV,
  kScale,  // fp32, by value
  kHidden,  // fp32, by value: what the mask makes of a score, -inf
  kKept,  // fp32, by value: 1 - dropout
  kRowSums,  // fp32 [sequences, heads, length], scratch
  kDQSum,  // fp32 [sequences, heads, length, head_dim], scratch: zeros
  kFirstVirtual,
};

// With log-sum-exp: without, there is no engine for it (9.19).
Graph sdpa_forward(const SdpaShape& shape);
Graph sdpa_backward(const SdpaShape& shape);

// What backward takes of its scratch, besides the plan's workspace: where each part begins, at
// multiples of 256, and all bytes.
struct SdpaScratch {
  std::int64_t row_sums, d_q_sum, workspace, bytes;
};
SdpaScratch scratch_of(const SdpaShape& shape, std::int64_t workspace_bytes);

// Bytes of the plan's workspace, or nothing where there is no plan.
using WorkspaceOf = std::function<std::optional<std::int64_t>(const SdpaShape&)>;
// The largest of the equal parts of `whole` (the last may be smaller) whose scratch is at most
// `bytes`: fewer sequences, and then fewer key heads of one. Nothing where not even one head fits,
// or there is no plan.
std::optional<SdpaShape> fitting_part(const SdpaShape& whole, std::int64_t bytes,
                                      const WorkspaceOf& workspace);

}  // namespace plimsoll::kernels::cuda
