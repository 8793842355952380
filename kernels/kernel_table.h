// Every op of a training step, as function pointers: one table for the host, one for each device,
// in one binary, so that a test can call both twins.
//
// Conventions of all ops:
// * Views are contiguous and row-major. Lengths in comments: T tokens of one micro-batch (T =
//   sequences · length, sequences one after another), h hidden, R rows, w a row's width, d
//   head_dim.
// * Activations, parameters, gradients: fp32, bf16 or fp16, each view its own. Statistics, tables,
//   scratch: fp32 where the signature says so. Ids int32; casts and their GEMMs have 8 bits where
//   float8_kernels.h says so. Anything else is Error{internal}, as is a shape that does not match;
//   checked by every op.
// * Arithmetic is fp32 whatever the storage; a result is rounded once, to nearest even.
// * Nothing is allocated: scratch is passed in. Nothing is kept between calls.
// * Deterministic: the same operands give the same bits; no result depends on addresses, on other
//   ranks, or on how many rows or elements of a larger tensor a call is given, except where a
//   GEMM's library chooses its order by the shape.
// * "+=" and "adds" accumulate into what is there. Operands may overlap only where the comment says
//   "in place" or "may be".
#pragma once

#include "kernels/attention_kernels.h"
#include "kernels/expert_kernels.h"
#include "kernels/float8_kernels.h"
#include "kernels/layer_kernels.h"
#include "kernels/low_rank_kernels.h"
#include "kernels/optimizer_kernels.h"
#include "kernels/packed_weights.h"

namespace plimsoll::kernels {

struct KernelTable : LayerKernels,
                     AttentionKernels,
                     ExpertKernels,
                     LossKernels,
                     OptimizerKernels,
                     LowRankKernels,
                     PackedKernels,
                     Float8Kernels {};

// The host's. Complete; each call runs on the calling thread alone (one rank, one thread).
const KernelTable& host_kernels();

// The GPU's: operands in device memory, each call queued on the stream of the calling thread's
// `cuda::Launching` (kernels/cuda/launch.h). Error{device} in a build without CUDA.
const KernelTable& cuda_kernels();

}  // namespace plimsoll::kernels
