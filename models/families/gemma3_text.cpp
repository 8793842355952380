#include "models/table/gemma_like.h"
#include "models/table/numerics.h"

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
  llama.window = config.natural("sliding_window", 4096);
  add_llama(model, config, head, llama);
  // modeling_gemma3.py reads attn_logit_softcapping and never uses it.
  set_gemma_decoder(
      model, config, head, llama,
      sliding_layers(config, llama.layers,
                     [period = std::int64_t{config.count("sliding_window_pattern", 6)}](
                         std::int64_t i) { return (i + 1) % period != 0; }),
      {.logits = config.has("final_logit_softcapping")});
  if (model.decoder) model.decoder->local_rotary = true;
}
}  // namespace

Family gemma3_text() {
  return {.model_type = "gemma3_text",
          .architectures = {{"Gemma3ForCausalLM", Head::language_model},
                            {"Gemma3TextModel", Head::base}},
          .lora_targets = {"q_proj", "v_proj"},
          .build = build,
          .numerics = gemma3_numerics};
}

}  // namespace plimsoll::models::families
