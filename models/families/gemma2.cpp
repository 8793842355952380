#include "models/table/llama_like.h"

namespace plimsoll::models::families {

namespace {
void build(const Config& config, Head head, ModelSpec& model) {
  LlamaLike llama = read_llama_like(config, {.vocab = 256000,
                                             .hidden = 2304,
                                             .ffn = 9216,
                                             .layers = 26,
                                             .heads = 8,
                                             .kv_heads = 4,
                                             .head_dim = 256,
                                             .positions = 8192,
                                             .sandwich_norms = true,
                                             .tied = true});
  llama.qkv_bias = llama.out_bias = config.flag("attention_bias", false);
  add_llama(model, config, head, llama);
}
}  // namespace

Family gemma2() {
  return {.model_type = "gemma2",
          .architectures = decoder_classes("Gemma2"),
          .lora_targets = {"q_proj", "v_proj"},
          .build = build};
}

}  // namespace plimsoll::models::families
