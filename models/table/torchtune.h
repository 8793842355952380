// torchtune's own decoders (its modules/transformer.py), which families of Llama's kind share.
#pragma once

#include "models/table/llama_like.h"

namespace plimsoll::models::families {

// Adds torchtune's forward of the family's layers, where its builder has what the config asks for.
void add_torchtune(ModelSpec& model, const LlamaLike& llama);

}  // namespace plimsoll::models::families
