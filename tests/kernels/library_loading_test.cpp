// cuBLASLt and cuSOLVER are no libraries of the link: they must be found where the link would have
// found them.
#include <cublasLt.h>
#include <cusolverDn.h>
#include <doctest/doctest.h>

#include <string>

#include "kernels/cuda/loaded_library.h"

using namespace plimsoll::kernels::cuda;

TEST_CASE("cuBLASLt of the toolkit is loaded by name, and is the one that was compiled for") {
  const LoadedLibrary library("libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR));
  const LoadedFunction<decltype(cublasLtGetVersion)> version(library, "cublasLtGetVersion");
  CHECK(version() / 10000 == CUBLAS_VER_MAJOR);  // major · 10000 + minor · 100 + patch
}

TEST_CASE("so is cuSOLVER, with what finds eigenvectors") {
  const LoadedLibrary library("libcusolver.so." + std::to_string(CUSOLVER_VER_MAJOR));
  const LoadedFunction<decltype(cusolverGetVersion)> version(library, "cusolverGetVersion");
  int found = 0;
  CHECK(version(&found) == CUSOLVER_STATUS_SUCCESS);
  CHECK(found / 1000 == CUSOLVER_VER_MAJOR);  // major · 1000 + minor · 100 + patch
  for (const char* name : {"cusolverDnCreate", "cusolverDnDestroy", "cusolverDnSetStream",
                           "cusolverDnDsyevdx_bufferSize", "cusolverDnDsyevdx"})
    CHECK(library.find(name) != nullptr);
}
