#include "models/table/llama_like.h"
#include "models/table/numerics.h"

namespace plimsoll::models::families {

namespace {
// q, k and v always have biases, the output projection never.
void build(const Config& config, Head head, ModelSpec& model) {
  LlamaLike llama = read_llama_like(
      config,
      {.vocab = 151936, .ffn = 22016, .kv_heads = 32, .positions = 32768, .qkv_bias = true});
  add_llama(model, config, head, llama);
  set_qwen_decoder(model, config, head, llama);
}
}  // namespace

Family qwen2() {
  return {.model_type = "qwen2",
          .architectures = decoder_classes("Qwen2"),
          .lora_targets = {"q_proj", "v_proj"},
          .build = build,
          .numerics = llama_numerics};
}

}  // namespace plimsoll::models::families
