// By cuSOLVER, in the caller's memory. A handle is made for each call: 200 steps lie between two of
// a matrix, and what a handle has allocated for itself is nobody's in between.
#include <cuda_runtime.h>
#include <cusolverDn.h>

#include <memory>
#include <string>
#include <type_traits>

#include "kernels/cuda/eigenvectors.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/loaded_library.h"
#include "kernels/host/blocks.h"

namespace plimsoll::kernels::cuda {

namespace {

namespace solver {
const LoadedLibrary library("libcusolver.so." + std::to_string(CUSOLVER_VER_MAJOR));
template <class Function>
using Loaded = LoadedFunction<Function>;
const Loaded<decltype(cusolverDnCreate)> create(library, "cusolverDnCreate");
const Loaded<decltype(cusolverDnDestroy)> destroy(library, "cusolverDnDestroy");
const Loaded<decltype(cusolverDnSetStream)> set_stream(library, "cusolverDnSetStream");
const Loaded<decltype(cusolverDnDsyevdx_bufferSize)> buffer_size(library,
                                                                 "cusolverDnDsyevdx_bufferSize");
const Loaded<decltype(cusolverDnDsyevdx)> syevdx(library, "cusolverDnDsyevdx");
}  // namespace solver

using host::expect;

void require(cudaError_t status) {
  check(status == cudaSuccess, ErrorKind::device,
        [&] { return std::string("cuSOLVER's Dsyevdx: ") + cudaGetErrorString(status); });
}
void require(cusolverStatus_t status, const char* what) {
  check(status == CUSOLVER_STATUS_SUCCESS, ErrorKind::device,
        [&] { return std::string("cuSOLVER: ") + what + ": status " + std::to_string(status); });
}

// The workspace's length, 2 k² and more, is an int.
constexpr std::int64_t kMostRows = 1 << 14;

struct Destroy {
  void operator()(cusolverDnHandle_t handle) const { solver::destroy(handle); }
};
using Handle = std::unique_ptr<std::remove_pointer_t<cusolverDnHandle_t>, Destroy>;

Handle handle_on(cudaStream_t stream) {
  cusolverDnHandle_t made = nullptr;
  require(solver::create(&made), "a handle");
  Handle handle(made);
  require(solver::set_stream(made, stream), "its stream");
  return handle;
}

void find(TensorView matrix, std::int64_t rank, TensorView scratch) {
  const std::int64_t k = matrix.shape[0];
  expect(matrix.dtype == DType::fp64 && matrix.shape.rank == 2 && matrix.shape[1] == k &&
             rank >= 1 && rank <= k && k <= kMostRows,
         "eigenvectors", "of a square matrix in fp64, at most as many as it has rows");
  cudaStream_t stream = current_launch().stream;
  const Handle handle = handle_on(stream);
  double* a = host::fp64_of(matrix);
  // The flag, then values, then what the library works with.
  constexpr std::int64_t kFlag = 256;
  auto* bytes = static_cast<std::byte*>(scratch.data);
  auto* flag = static_cast<int*>(static_cast<void*>(bytes));
  auto* values = static_cast<double*>(static_cast<void*>(bytes + kFlag));
  double* work = values + k;
  const int n = static_cast<int>(k), first = n - static_cast<int>(rank) + 1;
  int found = 0, length = 0, info = 0;
  // Row-major upper is column-major lower.
  constexpr auto jobz = CUSOLVER_EIG_MODE_VECTOR;
  constexpr auto range = CUSOLVER_EIG_RANGE_I;
  constexpr auto half = CUBLAS_FILL_MODE_LOWER;
  require(solver::buffer_size(handle.get(), jobz, range, half, n, a, n, 0, 0, first, n, &found,
                              values, &length),
          "Dsyevdx's workspace");
  const std::int64_t need = kFlag + 8 * (k + length);
  check(need <= scratch.elements(), ErrorKind::device, [&] {
    return "cuSOLVER's Dsyevdx wants " + std::to_string(need) + " B for " + std::to_string(k) +
           " rows, and has " + std::to_string(scratch.elements());
  });
  require(solver::syevdx(handle.get(), jobz, range, half, n, a, n, 0, 0, first, n, &found, values,
                         work, length, flag),
          "Dsyevdx");
  require(cudaMemcpyAsync(&info, flag, sizeof info, cudaMemcpyDeviceToHost, stream));
  require(cudaStreamSynchronize(stream));
  check(info == 0 && found == rank, ErrorKind::device, [&] {
    return "cuSOLVER's Dsyevdx found " + std::to_string(found) + " of " + std::to_string(rank) +
           " eigenvectors (info " + std::to_string(info) + ")";
  });
}

}  // namespace

Eigenvectors eigenvectors() {
  return find;
}

}  // namespace plimsoll::kernels::cuda
