// By LAPACK, in the caller's memory.
#include <cblas.h>

#include <algorithm>
#include <limits>

#include "kernels/host/blocks.h"

// Fortran's interface; lapack.h is not everywhere where OpenBLAS is. The lengths of the three
// strings come last.
extern "C" void dsyevr_(const char* jobz, const char* range, const char* uplo, const blasint* n,
                        double* a, const blasint* lda, const double* vl, const double* vu,
                        const blasint* il, const blasint* iu, const double* abstol, blasint* m,
                        double* w, double* z, const blasint* ldz, blasint* isuppz, double* work,
                        const blasint* lwork, blasint* iwork, const blasint* liwork, blasint* info,
                        std::size_t, std::size_t, std::size_t);

namespace plimsoll::kernels::host {

namespace {

void find(TensorView matrix, std::int64_t rank, TensorView scratch) {
  const std::int64_t k = matrix.shape[0];
  expect(matrix.dtype == DType::fp64 && matrix.shape.rank == 2 && matrix.shape[1] == k &&
             rank >= 1 && rank <= k && k <= std::numeric_limits<blasint>::max() / 26,
         "eigenvectors", "of a square matrix in fp64, at most as many as it has rows");
  static_assert(sizeof(blasint) <= 8);
  const std::int64_t bytes = 8 * k * (39 + rank);
  expect(scratch.elements() >= bytes, "eigenvectors", "the scratch holds what LAPACK works with");
  double* a = fp64_of(matrix);
  // LAPACK may never end with what is not finite.
  check(std::all_of(a, a + k * k, [](double v) { return std::isfinite(v); }), ErrorKind::bad_input,
        "a gradient is not finite, and has no directions to project to");
  openblas_set_num_threads(1);
  double* z = static_cast<double*>(static_cast<void*>(scratch.data));
  double* values = z + rank * k;
  double* work = values + k;
  auto* whole = static_cast<blasint*>(static_cast<void*>(work + 26 * k));
  blasint* support = whole + 10 * k;
  const auto n = static_cast<blasint>(k), first = static_cast<blasint>(k - rank + 1);
  const blasint work_length = 26 * n, whole_length = 10 * n;
  const double none = 0;
  blasint found = 0, info = 0;
  // Row-major upper is column-major lower.
  dsyevr_("V", "I", "L", &n, a, &n, &none, &none, &first, &n, &none, &found, values, z, &n, support,
          work, &work_length, whole, &whole_length, &info, 1, 1, 1);
  check(info == 0 && found == rank, ErrorKind::device, [&] {
    return "LAPACK's dsyevr found " + std::to_string(found) + " of " + std::to_string(rank) +
           " eigenvectors (info " + std::to_string(info) + ")";
  });
  std::copy_n(z, rank * k, a);
}

}  // namespace

Eigenvectors eigenvectors() {
  return find;
}

}  // namespace plimsoll::kernels::host
