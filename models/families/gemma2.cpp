#include "models/table/gemma_like.h"
#include "models/table/numerics.h"

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
  llama.window = config.natural("sliding_window", 4096);
  add_llama(model, config, head, llama);
  const auto caps = [&](const char* key) { return config.has(key) || !config.mentions(key); };
  set_gemma_decoder(
      model, config, head, llama,
      sliding_layers(config, llama.layers,
                     [period = std::int64_t{2}](std::int64_t i) { return (i + 1) % period != 0; }),
      {caps("attn_logit_softcapping"), caps("final_logit_softcapping")});
}
}  // namespace

Family gemma2() {
  return {.model_type = "gemma2",
          .architectures = decoder_classes("Gemma2"),
          .lora_targets = {"q_proj", "v_proj"},
          .build = build,
          .numerics = gemma2_numerics};
}

}  // namespace plimsoll::models::families
