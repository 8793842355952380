// GEMMs whose operands have 8 bits, each with one scale for all of its values, found anew from the
// values at hand ("current" or "dynamic" scaling): torchao's recipe "tensorwise"
// (torchao 0.18, float8/float8_utils.py, tensor_to_amax and amax_to_scale). Conventions as in
// kernels/kernel_table.h.
#pragma once

#include "kernels/tensor_view.h"

namespace plimsoll::kernels {

// A matrix [rows, columns] of fp8_e4m3 or fp8_e5m2, each value standing for value · scale[0].
struct Float8Matrix {
  ConstTensorView values;
  ConstTensorView scale;  // fp32 [2]
};

struct Float8Options {
  bool accumulate = false;  // the result is added to what is there, rounded once
  // Tensor cores may keep sums in fewer than fp32's bits (CUBLASLT_MATMUL_DESC_FAST_ACCUM), as
  // torchao lets them forward and not backward. Without tensor cores it changes nothing.
  bool fast_sums = false;
};

struct Float8Kernels {
  // scale[1]: what values are multiplied with, the largest number of `to` over max |x|, which
  // counts as at least 1e-12, divided in fp64 and rounded to fp32; scale[0]: its inverse in fp32.
  // scale fp32 [2]; partial: fp32 [n], n >= 1, scratch.
  void (*float8_scale)(ConstTensorView x, DType to, TensorView scale, TensorView partial);
  // x [R, C] · scale[1], in fp32, rounded once to nearest even; what is too large becomes the
  // largest number. `values` [R, C] and `transposed` [C, R], of one dtype; either may be none.
  void (*to_float8)(ConstTensorView x, ConstTensorView scale, TensorView values,
                    TensorView transposed);
  // y [M, N] = a [M, K] · b [N, K]ᵀ · (both scales) + bias [N], or += where asked. Tensor cores
  // want both operands with K side by side; K and N are multiples of 16, and one of the two is
  // e4m3. panels: as of linear_forward.
  void (*float8_gemm)(const Float8Matrix& a, const Float8Matrix& b, ConstTensorView bias,
                      const Float8Options& options, TensorView y, TensorView panels);
};

}  // namespace plimsoll::kernels
