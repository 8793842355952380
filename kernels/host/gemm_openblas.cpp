#include <cblas.h>

#include <limits>

#include "kernels/host/gemm.h"
#include "models/base/error.h"

namespace plimsoll::kernels::host {

namespace {
int narrow(std::int64_t length) {
  check(length <= std::numeric_limits<blasint>::max(), ErrorKind::unsupported,
        "a matrix has more rows or columns than OpenBLAS takes");
  return static_cast<int>(length);
}
// BLAS wants strides of at least 1 even of empty matrices.
int leading(std::int64_t stride) {
  return narrow(stride > 0 ? stride : 1);
}
}  // namespace

void gemm(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const Operand& a,
          const Operand& b, float beta, float* c, std::int64_t c_stride) {
  // Ranks are threads already, and the order of a sum must not depend on how many cores there are.
  static const bool one_thread = (openblas_set_num_threads(1), true);
  static_cast<void>(one_thread);
  if (m == 0 || n == 0) return;
  cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans,
              b.transposed ? CblasTrans : CblasNoTrans, narrow(m), narrow(n), narrow(k), alpha,
              a.data, leading(a.stride), b.data, leading(b.stride), beta, c, leading(c_stride));
}

}  // namespace plimsoll::kernels::host
