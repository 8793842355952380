// GPUs as devices. Chosen in the build: device_cuda.cpp, or no_cuda.cpp where there is no toolkit.
// No CUDA header is needed to include this.
#pragma once

#include <string>

#include "kernels/cuda/launch.h"
#include "runtime/device.h"

namespace plimsoll::runtime {

struct CudaOptions {
  kernels::cuda::Mode mode = kernels::cuda::Mode::deterministic;
  bool tf32 = false;  // fp32 GEMMs in TF32
  std::string autotune_cache;  // a file; "": what fast mode finds is forgotten
  bool libraries = true;  // cuBLASLt; else only kernels of our own
  int ranks = 1;  // of this process, as threads: they share the GPU's memory
};

// GPU `index` of those that this process sees. Each thread that uses it (a rank is a thread) gets a
// stream, a handle of cuBLASLt and a fault word of its own at its first call, `kernels()` included,
// and keeps them until it ends; it uses no other GPU. `options` are for threads that come after.
// `synchronize` throws what a kernel noted (kernels/cuda/launch.h).
// Error{device}: no driver, no such GPU, or a build without CUDA; it says which and what to do.
Device& cuda_device(int index, const CudaOptions& options = {});

// What `cuda_device` would say, or "" where it would not fail.
std::string why_no_cuda(int index);

}  // namespace plimsoll::runtime
