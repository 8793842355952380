#include "models/table/llama_like.h"
#include "models/table/numerics.h"

namespace plimsoll::models::families {

namespace {
void build(const Config& config, Head head, ModelSpec& model) {
  LlamaLike llama = read_llama_like(config, {.tied = false});
  // LlamaConfig.validate_architecture asks for it also where head_dim is given.
  config.check_divides("num_attention_heads", llama.heads, "hidden_size", llama.hidden);
  llama.qkv_bias = llama.out_bias = config.flag("attention_bias", false);
  llama.mlp_bias = config.flag("mlp_bias", false);
  add_llama(model, config, head, llama);
  set_llama_decoder(model, head, llama);
}
}  // namespace

Family llama() {
  return {.model_type = "llama",
          .architectures = decoder_classes("Llama"),
          .lora_targets = {"q_proj", "v_proj"},
          .build = build,
          .numerics = llama_numerics};
}

}  // namespace plimsoll::models::families
