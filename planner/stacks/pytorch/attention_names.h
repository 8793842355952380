// Names of what attention makes between its projections, under the module that does it.
#pragma once

#include "models/names.h"

namespace plimsoll::planner::pytorch {

// One of the three operands: as projected, in the kernel's dtype, repeated over the query heads of
// its group, scaled, laid out anew; and its gradient.
struct OperandNames {
  const char *rotated, *cast, *repeated, *scaled, *laid_out;
  const char *grad, *grad_wide, *grad_cast, *grad_rotated, *grad_laid_out;
};

struct AttentionNames {
  const char* module;
  OperandNames q, k, v;
  const char *mask, *scores, *scaled, *masked, *masked_fp32, *softmax, *probabilities, *dropped,
      *dropout_mask;
  const char *scores_grad, *softmax_grad, *softmax_grad_cast, *probabilities_grad;
  const char *product, *product_cast, *out, *logsumexp, *seed, *offset;
  const char *out_grad, *out_grad_cast, *joined_grad;
};

template <models::Text M>
inline constexpr OperandNames operand_names{
    models::Joined<M, ".rotated">::chars,      models::Joined<M, ".cast">::chars,
    models::Joined<M, ".repeated">::chars,     models::Joined<M, ".scaled">::chars,
    models::Joined<M, ".contiguous">::chars,   models::Joined<M, ".grad">::chars,
    models::Joined<M, ".grad.wide">::chars,    models::Joined<M, ".cast.grad">::chars,
    models::Joined<M, ".rotated.grad">::chars, models::Joined<M, ".grad.contiguous">::chars,
};

template <models::Text M>
inline constexpr AttentionNames attention_names{
    models::Joined<M, "">::chars,
    operand_names<models::Joined<M, ".q">::text>,
    operand_names<models::Joined<M, ".k">::text>,
    operand_names<models::Joined<M, ".v">::text>,
    models::Joined<M, ".mask">::chars,
    models::Joined<M, ".scores">::chars,
    models::Joined<M, ".scores.scaled">::chars,
    models::Joined<M, ".scores.masked">::chars,
    models::Joined<M, ".scores.masked.fp32">::chars,
    models::Joined<M, ".softmax">::chars,
    models::Joined<M, ".probabilities">::chars,
    models::Joined<M, ".probabilities.dropped">::chars,
    models::Joined<M, ".dropout.mask">::chars,
    models::Joined<M, ".scores.grad">::chars,
    models::Joined<M, ".softmax.grad">::chars,
    models::Joined<M, ".softmax.grad.cast">::chars,
    models::Joined<M, ".probabilities.grad">::chars,
    models::Joined<M, ".product">::chars,
    models::Joined<M, ".product.cast">::chars,
    models::Joined<M, ".attention">::chars,
    models::Joined<M, ".logsumexp">::chars,
    models::Joined<M, ".dropout.seed">::chars,
    models::Joined<M, ".dropout.offset">::chars,
    models::Joined<M, ".attention.grad.contiguous">::chars,
    models::Joined<M, ".attention.grad.cast">::chars,
    models::Joined<M, ".qkv.grad">::chars,
};

}  // namespace plimsoll::planner::pytorch
