// cuBLASLt is no library of the link: it must be found where the link would have found it.
#include <cublasLt.h>
#include <doctest/doctest.h>

#include <string>

#include "kernels/cuda/loaded_library.h"

using namespace plimsoll::kernels::cuda;

TEST_CASE("cuBLASLt of the toolkit is loaded by name, and is the one that was compiled for") {
  const LoadedLibrary library("libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR));
  const LoadedFunction<decltype(cublasLtGetVersion)> version(library, "cublasLtGetVersion");
  CHECK(version() / 10000 == CUBLAS_VER_MAJOR);  // major · 10000 + minor · 100 + patch
}
