// The layers of Gemma 1 to 3: norms with 1 + weight, a gated MLP with GELU, scaled embeddings, and
// layers with a sliding window between those that attend to everything.
#pragma once

#include "models/table/llama_like.h"

namespace plimsoll::models::families {

struct SoftCaps {
  bool scores = false, logits = false;
};

// Sets `decoder` and `blocks`, or `no_decoder` where the config leaves what the step program knows.
// `sliding`: of each layer, whether it has the window of `llama`; empty: none has.
void set_gemma_decoder(ModelSpec& model, const Config& config, Head head, const LlamaLike& llama,
                       std::vector<bool> sliding, SoftCaps caps);

}  // namespace plimsoll::models::families
