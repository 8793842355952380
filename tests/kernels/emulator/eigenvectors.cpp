// The emulator's cuSOLVER is the host's LAPACK.
#include "kernels/cuda/eigenvectors.h"
#include "kernels/host/blocks.h"

namespace plimsoll::kernels::cuda {

Eigenvectors eigenvectors() {
  return host::eigenvectors();
}

}  // namespace plimsoll::kernels::cuda
