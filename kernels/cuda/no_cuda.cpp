// In the place of all kernels where the build found no CUDA toolkit.
#include "kernels/kernel_table.h"

namespace plimsoll::kernels {

const KernelTable& cuda_kernels() {
  fail(ErrorKind::device,
       "this build has no CUDA kernels: no CUDA toolkit (nvcc, cudart, cuBLASLt) was found when it "
       "was configured");
}

}  // namespace plimsoll::kernels
