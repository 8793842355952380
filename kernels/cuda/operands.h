// Views as device code takes them, checked on the host; how many threads a kernel gets.
#pragma once

#include "kernels/device/dropper.cuh"
#include "kernels/device/span.cuh"
#include "kernels/host/blocks.h"

namespace plimsoll::kernels::cuda {

using device::Grid;
using device::Span;
using device::start;
using host::expect;
using host::fp32_of;
using host::fp64_of;
using host::int32_of;
using host::width_of;

// Error{internal}: a dtype that is no storage type. A view that is "none" gives null.
Span span_of(const ConstTensorView& view);
inline Span span_of(const TensorView& view) {
  return span_of(ConstTensorView(view));
}

// Whether eight elements at a time may be fetched from each view: all begin at 16 bytes.
bool aligned(std::initializer_list<ConstTensorView> views);
// The same for each row of `width` elements, or of columns from `first` on in rows of `stride`.
bool aligned_rows(std::initializer_list<ConstTensorView> views, std::int64_t width);
bool aligned_columns(const ConstColumns& columns);

device::Dropper dropper_of(const Dropout& dropout);

inline constexpr int kThreads = 256;
// Enough blocks to fill any GPU several times over; kernels walk on by the size of the grid. Not
// asked of the device, so that no result can depend on which GPU it is.
inline constexpr std::int64_t kMostBlocks = 132 * 16;

// For `items` that threads take one at a time, in strides of the grid.
Grid strided_grid(std::int64_t items);
// A block for each of `count`; Error{unsupported} beyond what a grid holds.
Grid block_each(std::int64_t count, int threads, std::size_t shared_bytes = 0);

// Adds the sums over rows of d_y · normalized x to d_weight and of d_y to d_bias (either may be
// none); kernels/kernel_table.h has `partial`. In row_sums.cu.
void add_norm_gradients(const char* op, bool centred, const ConstTensorView& x,
                        const ConstTensorView& statistics, const ConstTensorView& d_y,
                        std::int64_t width, const TensorView& d_weight, const TensorView& d_bias,
                        const TensorView& partial);

// Each part of the table stands beside its kernels.
void add_copies(KernelTable& table);
void add_packed(KernelTable& table);
void add_float8(KernelTable& table);
void add_optimizers(KernelTable& table);
void add_low_rank(KernelTable& table);
void add_gradient_norm(KernelTable& table);
void add_activations(KernelTable& table);
void add_norms(KernelTable& table);
void add_row_sums(KernelTable& table);
void add_rotary(KernelTable& table);
void add_embedding(KernelTable& table);
void add_loss(KernelTable& table);
void add_linear(KernelTable& table);
void add_eager_attention(KernelTable& table);
void add_flash_attention(KernelTable& table);
void add_routing(KernelTable& table);
void add_experts(KernelTable& table);

}  // namespace plimsoll::kernels::cuda
