// What Transformers writes in Python, as functions of elementary operations (tape/rule.h): norms,
// rotary embedding, GELU.
#pragma once

#include "planner/stacks/pytorch/module_types.h"

namespace plimsoll::planner::pytorch {

// norms.cpp; torch's LayerNorm too.
TapePart norm_tape(const ModuleNames& names, const NormPart& part, const NormInput& x,
                   const Regime& regime);

// Of x in the dtype `own`, the tables of cos and sin in theirs (rotary.cpp). The counts: all of x's
// elements, and kHalf of them, one of the parts that change places.
TapePart rotary_tape(const char* operand, DType own, DType tables, bool grad);
inline constexpr tape::Extent kHalf = 1;
TapePart half_rotary_tape(const char* operand, DType own, DType tables, bool grad);
// The same of pairs of neighbours, in fp32 and back.
TapePart pair_rotary_tape(const char* operand, DType own, bool grad);

// LitGPT's: cast back by the function itself, which holds what it turned until it returns.
TapePart joined_rotary_tape(const char* operand, DType own, DType tables, bool grad);

// A mixture's routing and experts (experts.cpp). The values: the router's logits, what it read.
struct ExpertsDtypes {
  DType logits, x, weight;
  DType adapter = DType::fp32;
  bool autocast = false;
  bool grad_logits = false, grad_x = false;
};
TapePart experts_tape(const char* name, const models::Node& node, const ExpertsPart& part,
                      const ExpertsDtypes& of);
// The routing alone: the scores in the dtype `to`, and beside them which experts these are of.
TapePart route_tape(const char* name, const models::Node& node, DType logits, DType to, bool grad);
inline constexpr tape::Extent kRoutedLogits = 0, kRoutedVisits = 1, kRoutedTokens = 2;

// `power`: the dtype in which the cube is made (activation.cpp).
TapePart gelu_tape(const char* name, DType own, DType power, bool grad);

// BLOOM's, in an autograd.Function: autograd keeps x alone, and the second makes x's gradient of x
// and the result's.
TapePart bloom_gelu_tape(const char* name, DType dtype);
TapePart bloom_gelu_back_tape(const char* name, DType dtype, DType d_dtype);

}  // namespace plimsoll::planner::pytorch
