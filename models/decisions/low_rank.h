// GaLore (Zhao et al., arXiv 2403.03507) in our own runtime: matrices are stepped in a subspace.
//
// Projected are the trained matrices of the layers, to the rank that is asked for, or to the lesser
// of their lengths; embedding, head, norms, biases and experts (stacked, three axes) take AdamW's
// step. Of a matrix [m, n] is kept, beside the weight:
//   projector  basis [r, k] of the gradient's dominant subspace, k the lesser of m and n, in the
//              gradient's dtype
//   moments    of the projected gradient: [m, r] where n <= m, [r, n] else
// A unit's projectors are one tensor, and so is each of its moments; a matrix's begins at a whole
// alignment (sharding.h), in the order of the parameters.
//
// The basis is made anew in the first step and then every kProjectionGap steps, from the gradient
// of that step: the eigenvectors of G·Gᵀ or GᵀG, the smaller of the two, for its r largest
// eigenvalues. They are the leading singular vectors of G. In fp64 they are as good as an SVD in
// fp32 of G itself, and need k² where that needs m · n and more. Rank 0's is everybody's. A step
// that is skipped (overflow) makes none, and the next one does.
//
// A matrix's step, in the unit's step op: R = the gradient projected, in the gradient's dtype (fp32
// for fp16, whose range a sum of a row with the loss scale in it may leave); AdamW on R with the
// moments gives an update of R's shape in fp32; that, projected back and times kProjectionScale,
// takes the place of the gradient, which nobody needs any more; and the weight (or its master)
// becomes w - lr · (update + wd · w). The reference (galore_torch 1.0, adamw.py) decays behind its
// update: the difference is of the second order in lr. No tensor is made: R, the update, and what
// the basis needs are in the workspace (workspace.h).
//
// Whole matrices are needed, so there is no sharding, and adapters are small already.
#pragma once

#include <algorithm>

#include "models/decisions/sharding.h"
#include "models/optimizers.h"
#include "models/run_spec.h"

namespace plimsoll::models::decisions {

// galore_torch's defaults (README, adamw.py), and Transformers' (trainer_optimizer.py).
inline constexpr std::int64_t kProjectionGap = 200;
inline constexpr float kProjectionScale = 0.25f;

inline constexpr DType kGram = DType::fp64;

// 0: the optimizer projects nothing.
inline std::int64_t projected_rank(const Strategy& s) {
  const std::int64_t own = rule_of(s.optimizer).torch.projects_to;
  return own > 0 && s.galore_rank > 0 ? s.galore_rank : own;
}

// Error{unsupported}.
inline void check_low_rank(const Strategy& s) {
  if (projected_rank(s) == 0) return;
  const std::string option = "--optimizer " + std::string(rule_of(s.optimizer).name);
  check(sharding_of(s).shards == 1, ErrorKind::unsupported, [&] {
    return option +
           " with --zero 1, 2 or 3: it projects whole matrices, and a rank has pieces of flat "
           "parts (--zero 0)";
  });
  check(!s.lora, ErrorKind::unsupported,
        [&] { return option + " with adapters: they are low-rank already (--optimizer adamw)"; });
  check(!s.offload.optimizer, ErrorKind::unsupported, [&] {
    return option + " with --offload optimizer: its projections are the device's GEMMs";
  });
}

// A matrix [rows, columns] in a subspace of `rank` dimensions.
struct LowRank {
  std::int64_t rows = 0, columns = 0, rank = 0;  // rank 0: it is stepped whole
  // Of a matrix, whether its columns are projected: [rows, rank] is stepped.
  bool right() const { return rows >= columns; }
  std::int64_t lesser() const { return std::min(rows, columns); }
  std::int64_t stepped() const { return checked_multiply(std::max(rows, columns), rank); }
  std::int64_t basis() const { return checked_multiply(lesser(), rank); }
};
inline LowRank low_rank(std::int64_t asked, std::int64_t rows, std::int64_t columns) {
  return {rows, columns, std::min({asked, rows, columns})};
}

// Elements, to a whole alignment of `dtype`.
inline std::int64_t aligned_elements(std::int64_t elements, DType dtype) {
  const std::int64_t step = alignment_elements(dtype);
  return checked_multiply(ceil_divide(elements, step), step);
}

// Bytes that `eigenvectors` (kernels/low_rank_kernels.h) needs for `rank` of a matrix [k, k].
// LAPACK 3.11, dsyevr: LWORK 26 k fp64, W k, Z rank · k; LIWORK 10 k, ISUPPZ 2 k integers of at
// most 8 bytes. cuSOLVER says at run time: nobody has documented it, and more than this is an error
// of the run; LAPACK's dsyevd, whose method it is, needs 2 k² + 6 k + 1.
inline Bytes eigenvector_scratch(Device device, std::int64_t k, std::int64_t rank) {
  const Bytes square = storage(Count(checked_multiply(k, k)), kGram);
  if (device == Device::cuda) return square * 3 + storage(Count(64 * k), kGram) + Bytes(1 << 20);
  return storage(Count(checked_multiply(k, 26 + 1 + rank)), kGram) +
         storage(Count(checked_multiply(k, 12)), DType::int64);
}

constexpr DType projected_dtype(DType gradient) {
  return gradient == DType::fp16 ? DType::fp32 : gradient;
}

// Of the workspace, where a matrix is stepped in the subspace (`gemm`: what its GEMMs need) and
// where its basis is made.
inline Bytes low_rank_workspace(const LowRank& m, DType gradient, Bytes gemm, Device device) {
  if (m.rank == 0) return {};
  const DType dtype = projected_dtype(gradient);
  const Bytes step = gemm + storage(Count(aligned_elements(m.stepped(), dtype)), dtype) +
                     storage(Count(m.stepped()), DType::fp32);
  const Bytes basis = storage(Count(checked_multiply(m.lesser(), m.lesser())), kGram) +
                      eigenvector_scratch(device, m.lesser(), m.rank);
  return std::max(step, basis);
}

}  // namespace plimsoll::models::decisions
