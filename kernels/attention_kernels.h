// Signatures of attention and of the loss; conventions in kernels/kernel_table.h.
#pragma once

#include "kernels/layer_kernels.h"

namespace plimsoll::kernels {

// Causal attention of `sequences` × `length` tokens; query head h reads key head
// h / (heads / kv_heads). Query i sees keys j <= i, and with a window only j > i - window.
struct AttentionShape {
  std::int64_t sequences = 1, length = 1;
  std::int64_t heads = 1, kv_heads = 1, head_dim = 1;  // head_dim <= 512
  std::int64_t window = 0;  // 0: none
  float scale = 1;  // of q · k, usually 1 / sqrt(head_dim)
  float cap = 0;  // scores become cap · tanh(score / cap) (Gemma 2); 0: they stay
};

struct AttentionKernels {
  // Streaming: the matrix is never stored (Dao et al., arXiv 2205.14135).
  // out = drop(softmax(scale · q kᵀ)) v. q, out [T, heads · d]; k, v [T, kv_heads · d];
  // logsumexp fp32 [sequences, heads, length], as cuDNN has it, or none. Dropout counts elements of
  // [sequences, heads, length, length].
  void (*flash_forward)(const AttentionShape& shape, const Dropout& dropout, ConstColumns q,
                        ConstColumns k, ConstColumns v, TensorView out, TensorView logsumexp);
  // Writes d_q, d_k, d_v. scratch: fp32 [groups, (heads / kv_heads) · length · c], at least one
  // group; c = 1 for the row sums of d_out · out, and d more where d_q is not fp32.
  void (*flash_backward)(const AttentionShape& shape, const Dropout& dropout, ConstTensorView d_out,
                         ConstColumns q, ConstColumns k, ConstColumns v, ConstTensorView out,
                         ConstTensorView logsumexp, Columns d_q, Columns d_k, Columns d_v,
                         TensorView scratch);

  // Materialised: p is [sequences, heads, length, length], of a dtype of its own.
  // p = scale · q kᵀ, capped; what the mask hides becomes -inf.
  void (*attention_scores)(const AttentionShape& shape, ConstColumns q, ConstColumns k,
                           TensorView p);
  // Rows of p become their softmax, in place. (Dropout: `dropout` of p into another tensor.)
  void (*softmax_forward)(TensorView p);
  // out [T, heads · d] = p v.
  void (*attention_values)(const AttentionShape& shape, ConstTensorView p, ConstColumns v,
                           TensorView out);
  // d_v = pᵀ d_out (p: dropped), summed over the query heads of a key head.
  void (*attention_values_backward)(const AttentionShape& shape, ConstTensorView p,
                                    ConstTensorView d_out, Columns d_v);
  // d_p = d_out vᵀ; 0 where the mask hides.
  void (*attention_probabilities_backward)(const AttentionShape& shape, ConstTensorView d_out,
                                           ConstColumns v, TensorView d_p);
  // d_p becomes p · (drop(d_p) - sum(p · drop(d_p))), in place; p before its dropout.
  void (*softmax_backward)(ConstTensorView p, const Dropout& dropout, TensorView d_p);
  // d_q = scale · d_p k; d_k = scale · d_pᵀ q, summed over the query heads of a key head. With a
  // cap d_p is first multiplied with its slopes, in place, for which the scores are made again.
  void (*attention_scores_backward)(const AttentionShape& shape, TensorView d_p, ConstColumns q,
                                    ConstColumns k, Columns d_q, Columns d_k);
};

// A token counts unless its target is this (Transformers' default).
inline constexpr std::int32_t kIgnoreIndex = -100;
inline constexpr int kLossSums = 256;  // of loss_sum

struct LossKernels {
  // losses[r] = logsumexp(logits[r, :]) - logits[r, target]; 0 for an ignored row.
  // logits [R, V], what lies behind them in a row is left; targets int32 [R]; losses fp32 [R];
  // logsumexp fp32 [R], or none. With `gradient` the logits become (softmax - onehot(target)) ·
  // factor, in place; an ignored row becomes 0. With a cap, logits are cap · tanh(logit / cap)
  // wherever they are read here; 0: there is none. Error{bad_input}: a target that is neither
  // ignored nor in [0, V).
  void (*cross_entropy)(ConstTensorView targets, std::int32_t ignore_index, bool gradient,
                        float factor, float cap, Columns logits, TensorView losses,
                        TensorView logsumexp);
  // The gradient alone, from logits that were made again: the second half of the chunked loss.
  void (*cross_entropy_backward)(ConstTensorView targets, std::int32_t ignore_index, float factor,
                                 float cap, ConstTensorView logsumexp, Columns logits);
  // x becomes cap · tanh(x / cap), in place.
  void (*soft_cap)(float cap, TensorView x);
  // sum fp64 [1] += factor · (losses[0] + losses[1] + ...), in fp64: losses r, r + kLossSums, … one
  // after another, and then these sums, r = 0 first.
  void (*loss_sum)(ConstTensorView losses, double factor, TensorView sum);
};

}  // namespace plimsoll::kernels
