// LitGPT's own decoder (its model.py), for families of Llama's kind.
#pragma once

#include "models/table/llama_like.h"

namespace plimsoll::models::families {

// Adds LitGPT's forward of the family's layers, where its configurations have what the config asks
// for.
void add_litgpt(ModelSpec& model, const LlamaLike& llama);

}  // namespace plimsoll::models::families
