// What a layer of our own runtime does, in which order, and what its backward finds.
//
// An op takes the operands that it consumes by move: a tensor dies with its last reader. "x += y"
// and "in place" mean that the result takes over the storage of the operand that it consumes.
// T tokens; h hidden, q and kv widths of queries and keys, f the MLP's inner width.
//
//   forward                                           saved for backward (always in this dtype)
//   n1      = input_norm(x)                           x [T h]; 1/rms, or mean and 1/std [T] fp32
//   q, k, v = GEMMs of n1, + bias                     n1 [T h], once for the three
//   q, k    = q_norm, k_norm (Qwen3)                  their inputs, 1/rms [T heads] fp32
//   q, k    rotated in place                          -
//   o       = attention(q, k, v)                      q, k, v; flash: o, log-sum-exp [T heads]
//                                                     fp32; eager, math: the probabilities, and o
//                                                     only for o_proj's weight gradient
//   m       = o_proj(o), += x                         -  (dropout is in the sum: counter-based, so
//                                                     the mask is made again)
//   n2      = post_norm(m)                            m [T h]; statistics as above
//   gate, up = GEMMs of n2 (GPT-2: one, c_fc)         n2 [T h]; gate, up [T f]
//   p       = silu(gate) · up (GPT-2: gelu(c_fc))     -
//   y       = down_proj(p), += m                      p, where gate and up want no gradient
// Phi-3 has gate and up as columns of one GEMM: p then is a tensor of its own in any case.
// A parallel residual (GPT-NeoX, Phi): m as above, but the MLP reads a norm of x; y = ..., += m.
//
//   backward; d is the gradient of the residual stream, one tensor from the final norm down to the
//   embedding, updated in place
//   d_p     = d · down_proj                           with dropout: of a masked copy of d
//   gate, up become their gradients in place, and d_p becomes p in the same pass: p costs one more
//           write of [T f] in a kernel that has read all it needs (0.3 % of the time of Llama-8B at
//           4.8 TB/s) and would be a quarter of what the layer saves
//   down_proj's weight gradient, from p and d
//   gate's and up's weight gradients from n2, then n2's gradient, the second GEMM added in place
//   d      += post_norm backward
//   o_proj's weight gradient, d_o; dq, dk, dv of attention; rotated back in place; k_norm, q_norm
//           backward in place; weight gradients of q, k, v; n1's gradient; d += input_norm backward
// Of a parallel residual d is both branches' gradient: what post_norm's backward makes of x's is a
// tensor of its own until o_proj's turn, and then one pass makes d + that in d, and in its place
// the d that o_proj reads.
// A mixture of experts (k of E for each token; n = T k rows, sorted by expert: as many as there are
// whatever the router says, so that no size depends on the data):
//   forward                                           saved for backward
//   logits  = router(n2)                              n2; logits, where scores are not normalized
//   scores, routes = the k largest                    scores [n] fp32; routes [E + 1 + 3n] int32
//   gate_up = rows of n2 · gate_up_proj[expert]       gate_up [n 2f]
//   p       = scores · silu(gate) · up                - (p, where nothing but down_proj is trained)
//   m       = the sum of a token's rows of p · down_proj[expert]
// Scores are in p, so that nothing of the second GEMM is saved for their gradient. GEMMs read
// the token's row where it is; backward: d_p from d's rows; gate_up becomes its gradient, d_p
// becomes p; down_proj's gradient; gate_up_proj's; d_rows [n h], and of a token their sum; the
// logits'.
// Norms make the normalized values again from their input and statistics.
// Weight gradients come before the gradient of the input that they share, so that the input dies
// first. A GEMM accumulates into an existing gradient (beta = 1): no temporary gradient.
// A gradient that nothing trained needs is not computed, and what only it would read is not saved;
// attention's backward makes dq, dk and dv together.
// A frozen GEMM saves no input, unless an adapter needs it. A packed weight is dequantized in
// each op that reads it (packed_weights.h).
// What need not be saved (nothing trained below, or made again later) is not written (statistics,
// log-sum-exp), or gives its place to the result (gate to p, the head norms' inputs).
//
// Stored attention's backward: dv from the (again dropped) matrix; then the matrix's gradient; the
// softmax's, in place; then dq and dk.
// Phase recompute is what a recomputation strategy makes again; masks that backward makes again
// (dropout) belong to backward.
//
// Adapters: a = x · A [T r] is saved, y = a · B, and the GEMM adds x · W: adding costs it nothing,
// where it would cost the adapter's product a read of y. Backward: da and B's gradient first, A's
// after the weight's; x's gradient gets da · A first, for the same reason. A and B of another dtype
// are cast in the workspace. Dropout masks a copy of x for the GEMM with A, in forward and again in
// backward; x's gradient gets the masked product from a temporary of its own.
#pragma once

#include <algorithm>

#include "models/run_spec.h"

namespace plimsoll::models::decisions {

// Of what is saved above, the part that is cheap to make again. Selective recomputation drops what
// one pass over saved values restores: the norms' outputs (where the norm's own backward keeps its
// input; else nothing would be gained), and the attention matrix of the eager
// and math paths (Korthikanti et al., arXiv 2205.05198; flash attention never stores it).
struct Keeps {
  bool norm_outputs = true;
  bool probabilities = true;
  bool operator==(const Keeps&) const = default;
};
constexpr Keeps keeps_of(RecomputeKind kind) {
  const bool selective = kind == RecomputeKind::selective;
  return {!selective, !selective};
}

// Whole layers are made again from their input: `layers_per_checkpoint` of them at a time.
constexpr bool recomputes_layers(RecomputeKind kind) {
  return kind != RecomputeKind::none && kind != RecomputeKind::selective;
}

// Whether layer `layer` of the model is in a checkpoint.
constexpr bool recomputes_layer(const Recompute& recompute, std::int64_t layer) {
  if (recompute.kind == RecomputeKind::block) return layer < recompute.layers;
  if (recompute.kind == RecomputeKind::nth) return (layer + 1) % recompute.layers == 0;
  return recomputes_layers(recompute.kind);
}

// Checkpoints are counted anew where a layer is trained differently from the one before it (other
// frozen parameters or adapters, or the first with anything trained below it); the last one of such
// a run may be shorter. sqrt: the least k with k · k >= L layers of the run. No k keeps fewer than
// its ceil(L / k) inputs and k live layers (Chen et al., arXiv 1604.06174, section 4.1); k - 1
// keeps no fewer. Recomputing ends with the last value that backward reads: gate and up of the
// checkpoint's last layer, or x · A of its down_proj's adapter; where it reads none, nothing is
// made again. The last layers are made again too, though their values have only just died.
constexpr std::int64_t layers_per_checkpoint(const Recompute& recompute, std::int64_t layers) {
  if (recompute.kind == RecomputeKind::every)
    return std::max<std::int64_t>(1, std::min(recompute.layers, layers));
  if (recompute.kind != RecomputeKind::sqrt) return 1;
  std::int64_t k = 1;
  while (k * k < layers) ++k;
  return k;
}

// torch.utils.checkpoint with use_reentrant=True runs the whole layer again, its last GEMM
// included. Transformers before 5.0 under FSDP1 takes it of itself, and Unsloth does; Accelerate
// does not; what `plimsoll export` writes for the others says False.
inline bool usually_reentrant(const Strategy& s) {
  const bool fsdp1 = is_fsdp1(s) && !s.data.fsdp_checkpoints;
  return s.kernels == Kernels::unsloth || (fsdp1 && s.transformers < kCheckpointsNotReentrant);
}
inline bool reentrant_checkpoints(const Strategy& s) {
  return recomputes_layers(s.recompute.kind) && s.use_reentrant.value_or(usually_reentrant(s));
}

}  // namespace plimsoll::models::decisions
