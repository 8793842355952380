#include "kernels/host/blocks.h"

namespace plimsoll::kernels {

const KernelTable& host_kernels() {
  static const KernelTable table = [] {
    KernelTable t{};
    host::add_embedding(t);
    host::add_norms(t);
    host::add_linear(t);
    host::add_rotary(t);
    host::add_activations(t);
    host::add_flash_attention(t);
    host::add_eager_attention(t);
    host::add_experts(t);
    host::add_loss(t);
    host::add_optimizers(t);
    host::add_low_rank(t);
    host::add_gradient_norm(t);
    host::add_copies(t);
    host::add_packed(t);
    host::add_float8(t);
    return t;
  }();
  return table;
}

}  // namespace plimsoll::kernels
