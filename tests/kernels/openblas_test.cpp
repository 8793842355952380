// Compiled where OpenBLAS multiplies. (Its own default is one thread for each core.)
#include <cblas.h>

#include "tests/kernels/operands.h"

namespace plimsoll::kernels::test {

TEST_CASE("OpenBLAS multiplies on the calling thread alone: ranks are threads already") {
  const Tensor x({2, 2}, DType::fp32, 1);
  Tensor y({2, 2}, DType::fp32);
  host_kernels().linear_forward(x, x, {}, {}, y, {});
  CHECK(openblas_get_num_threads() == 1);
}

}  // namespace plimsoll::kernels::test
