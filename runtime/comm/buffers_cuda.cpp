#include <cuda_runtime.h>

#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/rank_sum.h"
#include "runtime/comm/shared_buffers.h"
#include "runtime/stream.h"

namespace plimsoll::runtime::comm {

namespace {

CUstream_st* stream() {
  return kernels::cuda::current_launch().stream;
}

class CudaBuffers final : public SharedBuffers {
 public:
  Place place() override {
    auto event = std::make_shared<Event>();
    event->record(stream());
    return event;
  }
  void after(const Place& place) override {
    if (place) wait_for(stream(), *static_cast<const Event*>(place.get()));
  }
  void sum(std::span<const void* const> ranks, std::span<void* const> to, DType dtype,
           std::int64_t count) override {
    kernels::cuda::rank_sum(ranks, to, dtype, count);
  }
  void copy(void* to, const void* from, Bytes bytes) override {
    const cudaError_t status = cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes.value()),
                                               cudaMemcpyDeviceToDevice, stream());
    check(status == cudaSuccess, ErrorKind::device,
          [&] { return std::string("a copy between ranks: ") + cudaGetErrorString(status); });
  }
};

}  // namespace

SharedBuffers& cuda_buffers() {
  static CudaBuffers buffers;
  return buffers;
}

}  // namespace plimsoll::runtime::comm
