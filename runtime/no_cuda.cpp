// In the place of all *_cuda.cpp where the build found no CUDA toolkit.
#include "runtime/comm/shared_buffers.h"
#include "runtime/device_cuda.h"
#include "runtime/probe.h"

namespace plimsoll::runtime {

std::string why_no_cuda(int) {
  return "this build has no CUDA: no toolkit (nvcc, cudart, cuBLASLt) was found when it was "
         "configured; --device cpu needs none";
}

Device& cuda_device(int index, const CudaOptions&) {
  fail(ErrorKind::device, why_no_cuda(index));
}

GpuFacts gpu_facts(int index) {
  fail(ErrorKind::device, why_no_cuda(index));
}
int this_gpu() {
  fail(ErrorKind::device, why_no_cuda(0));
}
GpuReading read_gpu(int index) {
  fail(ErrorKind::device, why_no_cuda(index));
}

comm::SharedBuffers& comm::cuda_buffers() {
  fail(ErrorKind::device, why_no_cuda(0));
}

}  // namespace plimsoll::runtime
