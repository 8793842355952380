// In a build without cuSOLVER.
#include "kernels/cuda/eigenvectors.h"

namespace plimsoll::kernels::cuda {

Eigenvectors eigenvectors() {
  return nullptr;
}

}  // namespace plimsoll::kernels::cuda
