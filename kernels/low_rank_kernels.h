// Signatures of what an optimizer needs that steps matrices in a subspace of theirs (GaLore),
// beside GEMMs; conventions in kernels/kernel_table.h.
#pragma once

#include "kernels/tensor_view.h"

namespace plimsoll::kernels {

using Eigenvectors = void (*)(TensorView matrix, std::int64_t rank, TensorView scratch);

struct LowRankKernels {
  // gram fp64 [k, k] = x · xᵀ, or xᵀ · x where x [m, n] has no more columns than rows; k is the
  // lesser of m and n. Both halves are written. Products and sums are rounded to fp64 one after
  // another, in the order of the axis that is summed.
  void (*gram)(ConstTensorView x, TensorView gram);
  // Rows 0 .. rank - 1 of a symmetric matrix fp64 [k, k], of which only the upper half is read,
  // become eigenvectors of its `rank` largest eigenvalues, ascending, each of length 1 and of no
  // particular sign; the other rows are undefined. LAPACK's dsyevr, cuSOLVER's Dsyevdx. scratch:
  // uint8, of LAPACK's 8 · k · (39 + rank) bytes. Error{device}: the library's reason (no
  // convergence, a scratch too small); Error{bad_input}: a value that is not finite. Null: this
  // build has no such library.
  Eigenvectors eigenvectors;
  // basis [rank, k] = the first `rank` rows of vectors fp64 [k, k], the last first, each with the
  // sign that makes its element of largest magnitude (the first of those) positive.
  void (*basis)(ConstTensorView vectors, TensorView basis);
};

}  // namespace plimsoll::kernels
