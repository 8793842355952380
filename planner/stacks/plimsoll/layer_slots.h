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

// Error{unsupported}: the layer computes something else, naming the first module or op of it.
LayerSlots slots_of(const LayerPart& layer);

}  // namespace plimsoll::planner::own
