// In a build without LAPACK.
#include "kernels/host/blocks.h"

namespace plimsoll::kernels::host {

Eigenvectors eigenvectors() {
  return nullptr;
}

}  // namespace plimsoll::kernels::host
