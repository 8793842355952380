// Fixed blocks, and the unit in which device memory is handed out.
//
// Every rank has one workspace, allocated at the start and as large as the largest need of an op of
// its step: ops of the compute stream follow one another, so they share it. What needs some:
//   GEMMs         cuBLASLt's workspace; on the host the fp32 panels of 16-bit operands
//   norms, biases partial sums of the parameters' gradients, kPartialRows rows in fp32
//   attention     flash backward: see kAttentionWorkspace
//   embedding     backward sorts the tokens by id, so that rows are summed in one order: two pairs
//                 of int32 arrays
//   adapters      A or B cast to the compute dtype, beside the workspace of the GEMM
//   GaLore        a gradient and an update in their subspace, beside the workspace of the GEMM, or
//                 what a basis is made with (low_rank.h)
//   gradient norm one fp64 per kNormChunk elements of each tensor, and one per tensor
#pragma once

#include "models/run_spec.h"

namespace plimsoll::models::decisions {

// Blocks are multiples of this: what cudaMalloc itself aligns to (CUDA C programming guide, device
// memory accesses), enough for every vector load, TMA descriptor and library; 512 as PyTorch has it
// would only waste more on the many small tensors of a LoRA step.
inline constexpr std::int64_t kBlock = 256;

// One arena serves all requests of a rank: a block starts at the lowest address at which it fits
// (first fit; the arena grows at its end alone), and an op gives back what it consumed when it is
// done. What the arena has reserved is the end of the highest block that there ever was. First fit
// by address keeps what stays at the bottom, needs no tuning, and can be replayed by anyone.

// cuBLASLt: NVIDIA's recommendation for Hopper (cuBLAS documentation, cublasSetWorkspace); older
// architectures want 4 MiB, but one value keeps plans comparable.
inline constexpr Bytes kGemmWorkspace(32 << 20);
// Host: BLAS multiplies fp32, so 16-bit operands are converted panel by panel.
inline constexpr Bytes kHostPanels(16 << 20);

constexpr Bytes gemm_workspace(Device device, DType compute) {
  if (device == Device::cuda) return kGemmWorkspace;
  return compute == DType::fp32 ? Bytes(0) : kHostPanels;
}

// Flash attention's backward goes through the (sequence, key head) groups, as many at a time as fit
// here, at least one. A group needs, for each query of each query head of the key head, the row sum
// of dO·O in fp32 and, where activations have 16 bits, dQ in fp32. On a GPU cuDNN takes 16 bits,
// and where several query heads share a key head needs dK and dV of each of them in the
// activations' dtype; besides, once for all groups, kAttentionPadding: 256 bytes of its plan, and
// two parts that begin at multiples of kBlock. Its forward always writes log-sum-exp: where the
// pass keeps none, into the workspace, if it holds that.
// Measured: tests/golden/kernels/cudnn_workspaces.json.
inline constexpr Bytes kAttentionWorkspace(256 << 20);
inline constexpr Bytes kAttentionPadding(3 * kBlock);

inline constexpr std::int64_t kPartialRows = 128;
// Independent of the sharding, so that every stage adds in the same order.
inline constexpr std::int64_t kNormChunk = 1 << 16;

}  // namespace plimsoll::models::decisions
