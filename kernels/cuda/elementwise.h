// Launches an elementwise op: kernels/device/elementwise.cuh.
#pragma once

#include "kernels/cuda/operands.h"
#include "kernels/device/elementwise.cuh"

namespace plimsoll::kernels::cuda {

static_assert(kThreads == device::kStridedThreads);

// `op` from the views of `in` to those of `out`, all of them with `elements` elements.
template <class Op, int kReads, int kWrites>
void start_elementwise(const char* name, const Op& op, std::int64_t elements,
                       const ConstTensorView (&in)[kReads], const TensorView (&out)[kWrites]) {
  device::Operands<kReads, kWrites> o{{}, {}, elements, true};
  for (int r = 0; r < kReads; ++r) {
    o.in[r] = span_of(in[r]);
    o.vectors = o.vectors && aligned({in[r]});
  }
  for (int w = 0; w < kWrites; ++w) {
    o.out[w] = span_of(out[w]);
    o.vectors = o.vectors && aligned({out[w]});
  }
  start(name, device::elementwise<Op, kReads, kWrites>,
        strided_grid(o.vectors ? ceil_divide(elements, device::kVector) : elements), op, o);
}

}  // namespace plimsoll::kernels::cuda
