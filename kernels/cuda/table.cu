// No kernel: the table of the CUDA twins.
#include "kernels/cuda/operands.h"

namespace plimsoll::kernels {

const KernelTable& cuda_kernels() {
  static const KernelTable table = [] {
    KernelTable t{};
    cuda::add_embedding(t);
    cuda::add_norms(t);
    cuda::add_row_sums(t);
    cuda::add_linear(t);
    cuda::add_rotary(t);
    cuda::add_activations(t);
    cuda::add_flash_attention(t);
    cuda::add_eager_attention(t);
    cuda::add_routing(t);
    cuda::add_experts(t);
    cuda::add_loss(t);
    cuda::add_copies(t);
    cuda::add_packed(t);
    cuda::add_float8(t);
    cuda::add_optimizers(t);
    cuda::add_low_rank(t);
    cuda::add_gradient_norm(t);
    return t;
  }();
  return table;
}

}  // namespace plimsoll::kernels
