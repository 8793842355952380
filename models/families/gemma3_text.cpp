#include "models/table/llama_like.h"

namespace plimsoll::models::families {

namespace {
void build(const Config& config, Head head, ModelSpec& model) {
  LlamaLike llama = read_llama_like(config, {.vocab = 262208,
                                             .hidden = 2304,
                                             .ffn = 9216,
                                             .layers = 26,
                                             .heads = 8,
                                             .kv_heads = 4,
                                             .head_dim = 256,
                                             .positions = 131072,
                                             .qk_norm = true,
                                             .sandwich_norms = true,
                                             .tied = true});
  llama.qkv_bias = llama.out_bias = config.flag("attention_bias", false);
  add_llama(model, config, head, llama);
}
}  // namespace

Family gemma3_text() {
  return {.model_type = "gemma3_text",
          .architectures = {{"Gemma3ForCausalLM", Head::language_model},
                            {"Gemma3TextModel", Head::base}},
          .lora_targets = {"q_proj", "v_proj"},
          .build = build};
}

}  // namespace plimsoll::models::families
