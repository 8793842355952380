#include "models/table/gemma_like.h"
#include "models/table/numerics.h"

namespace plimsoll::models::families {

namespace {
void build(const Config& config, Head head, ModelSpec& model) {
  LlamaLike llama = read_llama_like(config, {.vocab = 256000,
                                             .hidden = 3072,
                                             .ffn = 24576,
                                             .layers = 28,
                                             .heads = 16,
                                             .kv_heads = 16,
                                             .head_dim = 256,
                                             .positions = 8192,
                                             .tied = true});
  llama.qkv_bias = llama.out_bias = config.flag("attention_bias", false);
  add_llama(model, config, head, llama);
  set_gemma_decoder(model, config, head, llama, {}, {});
}
}  // namespace

Family gemma() {
  return {.model_type = "gemma",
          .architectures = decoder_classes("Gemma"),
          .lora_targets = {"q_proj", "v_proj"},
          .build = build,
          .numerics = gemma_numerics};
}

}  // namespace plimsoll::models::families
