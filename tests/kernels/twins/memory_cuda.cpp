#include <cuda_runtime.h>

#include "tests/kernels/twins/twins.h"

namespace plimsoll::kernels::test {

namespace {
void require(cudaError_t status) {
  check(status == cudaSuccess, ErrorKind::device, [&] { return cudaGetErrorString(status); });
}
}  // namespace

const char* DeviceMemory::missing() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return cudaGetErrorString(status);
  return count > 0 ? nullptr : "no CUDA device";
}
std::byte* DeviceMemory::allocate(std::size_t bytes) {
  void* at = nullptr;
  require(cudaMalloc(&at, bytes));
  return static_cast<std::byte*>(at);
}
void DeviceMemory::release(std::byte* at) {
  cudaFree(at);
}
void DeviceMemory::upload(std::byte* to, const std::byte* from, std::size_t bytes) {
  require(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}
void DeviceMemory::download(std::byte* to, const std::byte* from, std::size_t bytes) {
  require(cudaDeviceSynchronize());
  require(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}
cuda::Gemms* DeviceMemory::library() {
  static const std::unique_ptr<cuda::Gemms> library = cuda::cublaslt_gemms({});
  return library.get();
}
cuda::AttentionLibrary* DeviceMemory::attention() {
  static const std::unique_ptr<cuda::AttentionLibrary> library = [] {
    try {
      return cuda::cudnn_attention();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::unsupported) throw;
      return std::unique_ptr<cuda::AttentionLibrary>();
    }
  }();
  return library.get();
}
void DeviceMemory::run_otherwise(bool) {}

}  // namespace plimsoll::kernels::test
