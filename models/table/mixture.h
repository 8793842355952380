// Decoders whose layers, or some of them, route each token to a few of many gated MLPs.
#pragma once

#include <vector>

#include "models/table/llama_like.h"

namespace plimsoll::models::families {

// Where a mixture's linear router and its experts are in a layer, and what the matrices of one are
// called. `normalizes`, `wide_scores`: as models/block.h's Node has them.
struct Mixture {
  std::string_view router, experts;
  std::string_view gate = "gate_proj", up = "up_proj", down = "down_proj";
  bool normalizes = false, wide_scores = false;
};

// Sets `decoder`, `blocks` and those of Transformers before 5.0, or `no_decoder` where the config
// leaves what the step program knows.
// `sparse`: which layers have the mixture, one each; the others have Llama's MLP.
void set_mixture_decoder(ModelSpec& model, const Config& config, Head head, const LlamaLike& llama,
                         const Mixture& mixture, const std::vector<bool>& sparse);

}  // namespace plimsoll::models::families
