#include "models/table/llama_like.h"

namespace plimsoll::models::families {

namespace {
// Llama's parameters; the step differs (embedding, residual, attention and logit multipliers).
void build(const Config& config, Head head, ModelSpec& model) {
  LlamaLike llama = read_llama_like(config, {});
  llama.qkv_bias = llama.out_bias = config.flag("attention_bias", false);
  llama.mlp_bias = config.flag("mlp_bias", false);
  add_llama(model, config, head, llama);
}
}  // namespace

Family granite() {
  return {.model_type = "granite",
          .architectures = decoder_classes("Granite"),
          .lora_targets = {},
          .build = build};
}

}  // namespace plimsoll::models::families
