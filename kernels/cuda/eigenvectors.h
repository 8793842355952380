// kernels/low_rank_kernels.h by cuSOLVER; null in a build without.
#pragma once

#include "kernels/low_rank_kernels.h"

namespace plimsoll::kernels::cuda {

Eigenvectors eigenvectors();

}  // namespace plimsoll::kernels::cuda
