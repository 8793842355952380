#include "models/table/llama_like.h"
#include "models/table/numerics.h"

namespace plimsoll::models::families {

namespace {
void build(const Config& config, Head head, ModelSpec& model) {
  LlamaLike llama = read_llama_like(config, {.vocab = 151936,
                                             .ffn = 22016,
                                             .kv_heads = 32,
                                             .head_dim = 128,
                                             .positions = 32768,
                                             .qk_norm = true});
  llama.qkv_bias = llama.out_bias = config.flag("attention_bias", false);
  add_llama(model, config, head, llama);
  set_qwen_decoder(model, config, head, llama);
}
}  // namespace

Family qwen3() {
  return {.model_type = "qwen3",
          .architectures = decoder_classes("Qwen3"),
          .lora_targets = {"q_proj", "v_proj"},
          .build = build,
          .numerics = llama_numerics};
}

}  // namespace plimsoll::models::families
