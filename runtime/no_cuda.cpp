// In the place of all *_cuda.cpp where the build found no CUDA toolkit.
#include "runtime/device_cuda.h"

namespace plimsoll::runtime {

std::string why_no_cuda(int) {
  return "this build has no CUDA: no toolkit (nvcc, cudart, cuBLASLt) was found when it was "
         "configured; --device cpu needs none";
}

Device& cuda_device(int index, const CudaOptions&) {
  fail(ErrorKind::device, why_no_cuda(index));
}

}  // namespace plimsoll::runtime
