// A layer's modules by what they are for: the layers that our own runtime runs, Llama's and GPT-2's
// (models/decisions/layer.h).
#pragma once

#include "planner/model_parts.h"

namespace plimsoll::planner::own {

// GPT-2's fused c_attn stands in `q`, c_fc in `up`, c_proj in `down`. A module that the layer does
// not have is 0 wide and trains nothing.
struct LayerSlots {
  NormPart input_norm, post_norm, q_norm, k_norm;
  LinearPart q, k, v, o, gate, up, down;
};

// Error{unsupported}: its layers compute something else.
LayerSlots slots_of(const LayerRun& run);

}  // namespace plimsoll::planner::own
